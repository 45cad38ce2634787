//! Large arguments of a plan: arrays and lists, named by the hash of their content.

use feedline_core::{Buffer, DType, Tensor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ptr::NonNull;

/// An array that a plan refers to by its hash. Memory stays where it is.
#[pyclass(frozen, module = "feedline._core")]
pub(crate) struct Blob {
    pub(crate) tensor: Tensor,
    #[pyo3(get)]
    pub(crate) hash: String,
}

fn hash(dtype: DType, shape: &[usize], parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{dtype}{shape:?}").as_bytes());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[pymethods]
impl Blob {
    /// The memory of a C-contiguous array at `address`, which `owner` keeps alive.
    #[staticmethod]
    fn array(
        py: Python<'_>,
        owner: Py<PyAny>,
        address: usize,
        bytes: usize,
        dtype: &str,
        shape: Vec<usize>,
    ) -> PyResult<Self> {
        let dtype: DType = dtype.parse().map_err(PyValueError::new_err)?;
        let start = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
        // SAFETY: the package passes the address and size of an array that `owner` is, and asks
        // users not to change arrays that they handed over.
        let buffer = unsafe { Buffer::foreign(start, bytes, Box::new(owner)) };
        let hash = py.detach(|| hash(dtype, &shape, &[&buffer]));
        let tensor = Tensor::new(dtype, &shape, buffer).map_err(crate::error::raise)?;
        Ok(Self { tensor, hash })
    }

    /// One run of bytes.
    #[staticmethod]
    fn bytes(data: &[u8]) -> Self {
        let hash = hash(DType::Bytes, &[], &[data]);
        Self { tensor: Tensor::bytes(Buffer::from(data)), hash }
    }

    /// A vector of bytes or texts.
    #[staticmethod]
    fn ragged(dtype: &str, data: &[u8], offsets: Vec<u64>) -> PyResult<Self> {
        let dtype: DType = dtype.parse().map_err(PyValueError::new_err)?;
        let marks: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        let hash = hash(dtype, &[], &[data, &marks]);
        let tensor = Tensor::ragged(dtype, Buffer::from(data), &offsets);
        Ok(Self { tensor: tensor.map_err(crate::error::raise)?, hash })
    }

    /// The blob as it is saved beside a plan: a line of JSON, then the bytes.
    fn save(&self) -> PyResult<Vec<u8>> {
        let tensor = &self.tensor;
        if tensor.offset(0).is_some() {
            return Err(PyValueError::new_err("lists of texts cannot be saved with a plan yet"));
        }
        let header = serde_json::json!({"dtype": tensor.dtype().name(), "shape": tensor.shape()});
        let mut bytes = format!("{header}\n").into_bytes();
        bytes.extend_from_slice(tensor.data());
        Ok(bytes)
    }
}

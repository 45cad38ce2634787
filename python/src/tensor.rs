//! Tensors for Python: memory that NumPy and others view through the buffer protocol.

use feedline_core::{Batch, Buffer, BufferMut, DType, Name, Tensor as CoreTensor};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString, PyTuple};
use std::ffi::{c_int, c_void};

/// The bytes of a tensor. Arrays over them are writable if nothing else shares them.
#[pyclass(frozen, module = "feedline._core")]
pub(crate) struct Tensor {
    memory: Memory,
}

enum Memory {
    Own(BufferMut),
    Shared(Buffer),
}

// SAFETY: the memory is only handed out through the buffer protocol, whose users synchronise
// writes among themselves, as for every array; Rust code never touches it again.
unsafe impl Sync for Tensor {}

#[pymethods]
impl Tensor {
    /// # Safety
    ///
    /// Called by the interpreter with a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, length, readonly) = match &slf.get().memory {
            Memory::Own(buffer) => (buffer.as_ptr(), buffer.len(), 0),
            Memory::Shared(buffer) => (buffer.as_ptr(), buffer.len(), 1),
        };
        // SAFETY: the interpreter passes a valid view; the memory lives as long as `slf`, to which
        // the view holds a reference.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                start as *mut c_void,
                length as isize,
                readonly,
                flags,
            )
        };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("no view")))
        }
    }

    fn __len__(&self) -> usize {
        match &self.memory {
            Memory::Own(buffer) => buffer.len(),
            Memory::Shared(buffer) => buffer.len(),
        }
    }
}

/// The names of element types, made once.
static DTYPES: [PyOnceLock<Py<PyString>>; 16] = [const { PyOnceLock::new() }; 16];

/// The names of a run's fields, made once.
#[derive(Default)]
pub(crate) struct Names(PyOnceLock<Vec<(Name, Py<PyString>)>>);

impl Names {
    /// Those of the first batch; others may have more.
    fn get(&self, py: Python<'_>, batch: &Batch) -> &[(Name, Py<PyString>)] {
        self.0.get_or_init(py, || {
            let names = batch.fields.iter().map(|(name, _)| *name);
            names.map(|name| (name, PyString::intern(py, name.as_str()).unbind())).collect()
        })
    }
}

/// A tensor as Python sees it: `(memory, dtype, shape)`, or a list of bytes or texts.
pub(crate) fn export<'py>(py: Python<'py>, tensor: CoreTensor) -> PyResult<Bound<'py, PyAny>> {
    let dtype = tensor.dtype();
    if dtype.size().is_none() {
        let item = |at: usize| -> PyResult<Bound<'py, PyAny>> {
            let bytes = tensor.item(at).unwrap_or_default();
            Ok(match dtype {
                DType::Text => PyString::new(py, &String::from_utf8_lossy(bytes)).into_any(),
                _ => PyBytes::new(py, bytes).into_any(),
            })
        };
        if tensor.shape().is_empty() {
            return item(0);
        }
        let items: PyResult<Vec<_>> = (0..tensor.elements()).map(item).collect();
        return Ok(PyList::new(py, items?)?.into_any());
    }
    let shape = PyTuple::new(py, tensor.shape())?;
    let name = &DTYPES[dtype as usize];
    let name = name.get_or_init(py, || PyString::intern(py, dtype.name()).unbind()).bind(py);
    let own = !tensor.buffer().is_some_and(Buffer::is_foreign);
    // One number is copied: memory of Python's own costs less than a share in ours.
    let memory = if own && tensor.shape().is_empty() {
        PyByteArray::new(py, tensor.data()).into_any()
    } else {
        let memory = match tensor.into_buffer().try_mut() {
            Ok(buffer) => Memory::Own(buffer),
            Err(shared) => Memory::Shared(shared),
        };
        Bound::new(py, Tensor { memory })?.into_any()
    };
    PyTuple::new(py, [memory.as_any(), name.as_any(), shape.as_any()]).map(Bound::into_any)
}

/// A batch as a dict of exported tensors; a `single` sample has one index, not a vector of them.
pub(crate) fn export_batch<'py>(
    py: Python<'py>,
    batch: Batch,
    single: bool,
    names: &Names,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let names = names.get(py, &batch);
    for (name, tensor) in batch.fields {
        let known = names.iter().find(|(known, _)| *known == name);
        let value = export(py, tensor)?;
        match known {
            Some((_, text)) => dict.set_item(text.bind(py), value)?,
            None => dict.set_item(name.as_str(), value)?,
        }
    }
    if let Some(indices) = batch.indices {
        let indices: Vec<i64> = indices.into_iter().map(|index| index as i64).collect();
        let tensor = match (single, &indices[..]) {
            (true, [index]) => CoreTensor::scalar(*index),
            _ => CoreTensor::from_slice(&[indices.len()], &indices),
        };
        dict.set_item("index", export(py, tensor)?)?;
    }
    Ok(dict)
}

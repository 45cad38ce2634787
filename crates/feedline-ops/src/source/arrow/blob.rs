//! Bytes and text that lie in a file until they are needed.

use feedline_core::{Buffer, Context, Cut, DType, Deferred, Error, Result, Shape, Tensor};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

/// Bytes or text that lie in a file.
pub(super) struct Blob {
    pub path: Arc<Path>,
    pub size: u64,
    pub modified: i64,
    pub offset: u64,
    pub length: usize,
    pub dtype: DType,
    /// What was read.
    pub bytes: Option<Buffer>,
}

impl Blob {
    fn check(dtype: DType, bytes: &[u8]) -> Result<()> {
        match dtype {
            DType::Text => std::str::from_utf8(bytes)
                .map(|_| ())
                .map_err(|error| Error::record(format!("it is not UTF-8: {error}"))),
            _ => Ok(()),
        }
    }
}

impl Deferred for Blob {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Shape {
        Shape::new()
    }

    fn bytes(&self) -> usize {
        self.length
    }

    fn write(self: Box<Self>, out: &mut [u8], _: &mut Context<'_>) -> Result<()> {
        if let Some(bytes) = &self.bytes {
            out.copy_from_slice(bytes);
        }
        Self::check(self.dtype, out)
    }

    fn wants(&self) -> Option<Cut<'_>> {
        let cut = Cut::range(&self.path, self.size, self.offset, self.length);
        self.bytes.is_none().then_some(Cut { modified: self.modified, ..cut })
    }

    fn in_place(&self) -> bool {
        true
    }

    fn supply(&mut self, bytes: Buffer) {
        self.bytes = Some(bytes);
    }

    fn as_supplied(&mut self) -> Result<Option<Tensor>> {
        let Some(bytes) = self.bytes.take() else { return Ok(None) };
        Self::check(self.dtype, &bytes)?;
        Tensor::new(self.dtype, &[], bytes).map(Some)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

//! An image that is described but not computed yet.
//!
//! Steps extend the description; it is computed once, in one pass, into the place where it is
//! wanted. Any chain of image steps has this form:
//!
//! ```text
//!  encoded or pixels ─► region ─► resize ─► window ─► flips ─► pointwise ─► layout
//!                       (decode only this)                     (per value)
//! ```
//!
//! A step that does not fit behind what is there already (a second resize, a change of colours)
//! first has the picture computed, and a new description starts from its pixels.
//!
//! In a plain run ([`Workspace::reference`](feedline_core::Workspace)) the picture also keeps the list
//! of its changes as they were written, and is computed by doing one after the other to the whole
//! picture. That is what it means; the form above, and the fast way, must equal it bit for bit.

use super::decode::{Decode, Mode};
use crate::codec::{self, Decoder, Header};
use crate::kernel::{
    Level, Order, Pixels, Rect, Resize, Scratch, Target, Tone, convert_into, resize_into,
    resize_part_into, source_window,
};
use crate::table::{cast_bytes, normalize_bytes};
use crate::volume::Volume;
use feedline_core::{
    Buffer, Context, DType, Deferred, Error, Layout, Pool, Result, Shape, Tensor, Value,
};
use std::any::Any;
use std::sync::Arc;

/// A change of every value by itself, knowing only its channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Pointwise {
    /// `(x - mean) / std` per channel, after scaling integers to 0…1; gives `float32`.
    Normalize(Arc<Affine>),
    /// Another dtype, scaled to its range or not.
    Cast(DType, bool),
}

/// The numbers of a normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// Mean per channel.
    pub mean: Vec<f32>,
    /// Standard deviation per channel.
    pub std: Vec<f32>,
    /// For 8-bit values: `1 / (255 · std)`.
    pub scale: Vec<f32>,
    /// For 8-bit values: `-mean / std`.
    pub bias: Vec<f32>,
}

impl Pointwise {
    /// The dtype after it.
    #[must_use]
    pub fn output(&self) -> DType {
        match self {
            Self::Normalize(_) => DType::F32,
            Self::Cast(dtype, _) => *dtype,
        }
    }

    /// Applies it to interleaved values of `dtype`, giving bytes of its output dtype.
    fn apply(&self, dtype: DType, values: &[u8], channels: usize) -> Vec<u8> {
        match self {
            Self::Normalize(affine) => normalize_bytes(dtype, values, affine, channels),
            Self::Cast(to, scale) => cast_bytes(dtype, *to, *scale, values),
        }
    }
}

/// One change, as a step asked for it.
enum Change {
    Crop(Rect),
    Resize(Resize),
    FlipHorizontal,
    FlipVertical,
    Pointwise(Pointwise),
}

enum Origin {
    Encoded {
        bytes: Buffer,
        header: Header,
        gray: bool,
        orientation: u8,
        dct_scale: bool,
    },
    /// Pixels with channels last.
    Pixels(Tensor),
}

/// A deferred image.
pub struct Picture {
    origin: Origin,
    /// Size of the (oriented) origin.
    size: (usize, usize),
    channels: usize,
    /// What of the origin is used.
    region: Rect,
    resize: Option<Resize>,
    /// What of the resized picture is used; unused without a resize.
    window: Rect,
    flip_horizontal: bool,
    flip_vertical: bool,
    pointwise: Vec<Pointwise>,
    layout: Layout,
    /// The changes in their order, where the picture is to be computed by them.
    changes: Option<Vec<Change>>,
    decode_slot: usize,
    pixel_slot: usize,
}

/// The reusable things of one thread.
#[derive(Default)]
struct Tools {
    decoder: Decoder,
    scratch: Scratch,
    oriented: Vec<u8>,
    /// The last pointwise changes, their number of channels, and their table.
    table: (Vec<Pointwise>, usize, Vec<u8>),
}

impl Picture {
    pub(crate) fn encoded(
        bytes: Buffer,
        header: Header,
        decode: &Decode,
        context: &Context<'_>,
    ) -> Self {
        let orientation = if decode.exif { header.orientation } else { 1 };
        let size =
            if orientation == 1 { (header.width, header.height) } else { header.oriented_size() };
        let gray = decode.mode == Mode::Gray;
        let channels = if gray { 1 } else { 3 };
        let dct_scale = decode.dct_scale && orientation == 1;
        let origin = Origin::Encoded { bytes, header, gray, orientation, dct_scale };
        Self::new(origin, size, channels, context)
    }

    fn new(origin: Origin, size: (usize, usize), channels: usize, context: &Context<'_>) -> Self {
        let region = Rect::whole(size.0, size.1);
        let eight_bits = match &origin {
            Origin::Pixels(tensor) => tensor.dtype() == DType::U8,
            Origin::Encoded { .. } => true,
        };
        // Only these have kernels; others are rare enough for the simple way.
        let has_kernel = eight_bits && matches!(channels, 1 | 3);
        let simply = context.workspace.reference || !has_kernel;
        Self {
            origin,
            size,
            channels,
            region,
            resize: None,
            window: region,
            flip_horizontal: false,
            flip_vertical: false,
            pointwise: Vec::new(),
            layout: Layout::Hwc,
            changes: simply.then(Vec::new),
            decode_slot: context.slot,
            pixel_slot: context.slot,
        }
    }

    /// The picture in a value: the description itself, or a new one over a tensor of pixels that
    /// lie as `layout` says.
    ///
    /// # Errors
    ///
    /// If the value is no image.
    pub fn from_value(
        value: Value,
        layout: Layout,
        context: &mut Context<'_>,
    ) -> Result<Box<Self>> {
        let tensor = match value {
            Value::Deferred(deferred) => match deferred.into_any().downcast::<Self>() {
                Ok(picture) => return Ok(picture),
                // Pixels out of a file, which the step said it needs.
                Err(other) => match other.downcast::<Volume>() {
                    Ok(volume) => volume.into_tensor(context)?,
                    Err(_) => return Err(Error::Internal("an image of another kind".into())),
                },
            },
            Value::Tensor(tensor) => tensor,
        };
        let dtype = tensor.dtype();
        let (Some(element), &[first, second, third]) = (dtype.size(), tensor.shape()) else {
            return Err(Error::record(format!("{tensor:?} is no image")));
        };
        let (height, width, channels, tensor) = match layout {
            Layout::Hwc => (first, second, third, tensor),
            Layout::Chw => {
                let mut buffer = context.workspace.pool.take(tensor.data().len())?;
                from_planes(tensor.data(), &mut buffer, first, element);
                let shape = [second, third, first];
                (second, third, first, Tensor::new(dtype, &shape, buffer.freeze())?)
            }
        };
        let mut picture = Self::new(Origin::Pixels(tensor), (width, height), channels, context);
        picture.layout = layout;
        Ok(Box::new(picture))
    }

    /// Width and height as described so far.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let rect = if self.resize.is_some() { self.window } else { self.region };
        (rect.width, rect.height)
    }

    /// Number of channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Notes a change for the simple way.
    fn note(&mut self, change: impl FnOnce() -> Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change());
        }
    }

    /// Cuts out a rectangle, given in the picture as it is now.
    pub fn crop(&mut self, rect: Rect) {
        self.note(|| Change::Crop(rect));
        let (width, height) = self.size();
        let x = if self.flip_horizontal { width - rect.x - rect.width } else { rect.x };
        let y = if self.flip_vertical { height - rect.y - rect.height } else { rect.y };
        let part = if self.resize.is_some() { &mut self.window } else { &mut self.region };
        *part = Rect { x: part.x + x, y: part.y + y, width: rect.width, height: rect.height };
    }

    /// Resizes, unless it has that size already.
    ///
    /// # Errors
    ///
    /// If the picture had to be computed first and is bad.
    pub fn resize(mut self: Box<Self>, to: Resize, context: &mut Context<'_>) -> Result<Box<Self>> {
        if self.size() == (to.width, to.height) {
            return Ok(self);
        }
        // A resize comes before flips and pointwise changes in the description. It does not commute
        // with either: weights are rounded, so a mirrored resize need not be the mirror image of a
        // resize, and a mean of changed values is not the changed mean.
        let flipped = self.flip_horizontal || self.flip_vertical;
        if self.resize.is_some() || flipped || !self.pointwise.is_empty() {
            self = self.settle(context)?;
        }
        self.note(|| Change::Resize(to));
        self.pixel_slot = context.slot;
        self.window = Rect::whole(to.width, to.height);
        self.resize = Some(to);
        Ok(self)
    }

    /// Mirrors left to right.
    pub fn flip_horizontal(&mut self) {
        self.note(|| Change::FlipHorizontal);
        self.flip_horizontal = !self.flip_horizontal;
    }

    /// Mirrors top to bottom.
    pub fn flip_vertical(&mut self) {
        self.note(|| Change::FlipVertical);
        self.flip_vertical = !self.flip_vertical;
    }

    /// Adds a pointwise change.
    pub fn pointwise(&mut self, change: Pointwise) {
        self.note(|| Change::Pointwise(change.clone()));
        self.pointwise.push(change);
    }

    /// The layout of the result as described so far.
    #[must_use]
    pub fn described_layout(&self) -> Layout {
        self.layout
    }

    /// Sets the layout of the result.
    pub fn layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    /// Computes the picture now and starts a new description from its pixels.
    ///
    /// # Errors
    ///
    /// If the picture is bad.
    pub fn settle(self: Box<Self>, context: &mut Context<'_>) -> Result<Box<Self>> {
        let layout = self.layout;
        let pixels = self.into_pixels(context)?;
        let mut picture = Self::from_value(Value::Tensor(pixels), Layout::Hwc, context)?;
        picture.layout = layout;
        Ok(picture)
    }

    /// Computes the picture now, with channels last.
    ///
    /// # Errors
    ///
    /// If the picture is bad.
    pub fn into_pixels(mut self: Box<Self>, context: &mut Context<'_>) -> Result<Tensor> {
        self.layout = Layout::Hwc;
        Value::Deferred(self).into_tensor(context)
    }

    fn order(&self) -> Order {
        match self.layout {
            Layout::Hwc => Order::Hwc,
            Layout::Chw => Order::Chw,
        }
    }

    /// The table from an 8-bit value to its output, by running the changes over all 256 values.
    fn table(&self) -> Vec<u8> {
        let ramp: Vec<u8> =
            (0..=255u8).flat_map(|level| std::iter::repeat_n(level, self.channels)).collect();
        let (mut dtype, mut values) = (DType::U8, ramp);
        for change in &self.pointwise {
            values = change.apply(dtype, &values, self.channels);
            dtype = change.output();
        }
        let element = dtype.size().unwrap_or(1);
        let mut table = vec![0; values.len()];
        for (at, value) in values.chunks_exact(element).enumerate() {
            let (level, channel) = (at / self.channels, at % self.channels);
            let to = (channel * 256 + level) * element;
            table[to..to + element].copy_from_slice(value);
        }
        table
    }

    /// The fast way: decode what is needed, then one pass to the destination.
    fn compute(self: Box<Self>, out: &mut [u8], context: &mut Context<'_>) -> Result<()> {
        let mut tools = context.workspace.take::<Tools>();
        let result = self.compute_with(out, context, &mut tools);
        context.workspace.keep(tools);
        result
    }

    fn compute_with(
        &self,
        out: &mut [u8],
        context: &mut Context<'_>,
        tools: &mut Tools,
    ) -> Result<()> {
        let needed = self.needed();
        let Tools { decoder, scratch, oriented, table } = tools;
        let (pixels, held, region) = match &self.origin {
            Origin::Pixels(tensor) => {
                let (width, height) = self.size;
                let pixels = Pixels::packed(tensor.data(), width, height, self.channels);
                (part(pixels, needed), needed, self.region)
            }
            Origin::Encoded { bytes, header, gray, orientation, dct_scale } => {
                let mode = mode(*gray);
                let shrink = self.shrink(*dct_scale, header);
                let slot = self.decode_slot;
                let decoded = context.charge(slot, |_| match (shrink, orientation) {
                    (1, 1) => decoder.decode_region(bytes, header, mode, needed),
                    (1, _) => decoder.decode_region(bytes, header, mode, whole(header)),
                    (shrink, _) => decoder.decode_scaled(bytes, header, mode, shrink),
                });
                let decoded = decoded.map_err(bad)?;
                if shrink > 1 {
                    let region = shrunk(self.region, shrink, &decoded.pixels);
                    (part(decoded.pixels, region), region, region)
                } else if *orientation == 1 {
                    let inside = Rect {
                        x: needed.x - decoded.region.x,
                        y: needed.y - decoded.region.y,
                        ..needed
                    };
                    (part(decoded.pixels, inside), needed, self.region)
                } else {
                    let (width, height) = codec::orient(decoded.pixels, *orientation, oriented);
                    let pixels = Pixels::packed(oriented, width, height, self.channels);
                    (part(pixels, needed), needed, self.region)
                }
            }
        };
        let held = Rect { x: held.x - region.x, y: held.y - region.y, ..held };
        let tone = match &self.pointwise[..] {
            [] => Tone::Identity,
            [Pointwise::Normalize(affine)] => {
                // Only pictures of one or three channels come this way.
                let three = |values: &[f32]| std::array::from_fn(|at| values[at % values.len()]);
                Tone::Affine { scale: three(&affine.scale), bias: three(&affine.bias) }
            }
            changes => {
                if table.0 != changes || table.1 != self.channels {
                    *table = (changes.to_vec(), self.channels, self.table());
                }
                let element = changes.last().and_then(|c| c.output().size()).unwrap_or(1);
                Tone::Table { element, table: &table.2 }
            }
        };
        let target = Target {
            out,
            order: self.order(),
            tone,
            flip_horizontal: self.flip_horizontal,
            flip_vertical: self.flip_vertical,
        };
        let (level, pixel_slot) = (Level::best(), self.pixel_slot);
        context.charge(pixel_slot, |_| match &self.resize {
            Some(resize) => resize_part_into(
                level,
                pixels,
                held,
                region.width,
                region.height,
                resize,
                self.window,
                target,
                scratch,
            ),
            None => {
                convert_into(level, pixels, Rect::whole(pixels.width, pixels.height), target);
            }
        });
        Ok(())
    }

    /// What of the origin the result depends on.
    fn needed(&self) -> Rect {
        match &self.resize {
            None => self.region,
            Some(resize) => {
                let part =
                    source_window(self.region.width, self.region.height, resize, self.window);
                Rect { x: self.region.x + part.x, y: self.region.y + part.y, ..part }
            }
        }
    }

    /// By how much a JPEG may be shrunk while decoding: the result is still at least as large as
    /// the resize asks for.
    fn shrink(&self, allowed: bool, header: &Header) -> usize {
        let Some(resize) = self.resize.as_ref().filter(|_| allowed) else { return 1 };
        if header.format != codec::Format::Jpeg {
            return 1;
        }
        let fits = |by: &usize| {
            self.region.width / by >= resize.width && self.region.height / by >= resize.height
        };
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// The meaning: one change after another, each to the whole picture, by the simplest code.
    fn simply(
        &self,
        changes: Vec<Change>,
        out: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<()> {
        let mut tools = context.workspace.take::<Tools>();
        let result = self.simply_with(changes, out, &mut tools);
        context.workspace.keep(tools);
        result
    }

    fn simply_with(
        &self,
        mut changes: Vec<Change>,
        out: &mut [u8],
        tools: &mut Tools,
    ) -> Result<()> {
        let (mut pixels, mut size, scaled_region) = self.whole_origin(tools)?;
        if let Some(region) = scaled_region {
            // Decoded at a fraction of its size: the crops up to the resize are this region of it.
            let resize = changes.iter().position(|change| matches!(change, Change::Resize(_)));
            changes.splice(..resize.unwrap_or(0), [Change::Crop(region)]);
        }
        let (channels, mut dtype) = (self.channels, self.origin_dtype());
        for change in changes {
            let pixel = channels * dtype.size().unwrap_or(1);
            let all = Rect::whole(size.0, size.1);
            match change {
                Change::Crop(rect) => {
                    pixels = rearrange(&pixels, size, pixel, rect, false, false);
                    size = (rect.width, rect.height);
                }
                Change::Resize(to) => {
                    let source = Pixels::packed(&pixels, size.0, size.1, channels);
                    let window = Rect::whole(to.width, to.height);
                    let mut result = vec![0; to.width * to.height * channels];
                    let target = Target::plain(&mut result);
                    let scratch = &mut tools.scratch;
                    resize_into(Level::Scalar, source, all, &to, window, target, scratch);
                    (pixels, size) = (result, (to.width, to.height));
                }
                Change::FlipHorizontal => {
                    pixels = rearrange(&pixels, size, pixel, all, true, false);
                }
                Change::FlipVertical => {
                    pixels = rearrange(&pixels, size, pixel, all, false, true);
                }
                Change::Pointwise(change) => {
                    pixels = change.apply(dtype, &pixels, channels);
                    dtype = change.output();
                }
            }
        }
        match self.layout {
            Layout::Hwc => out.copy_from_slice(&pixels),
            Layout::Chw => to_planes(&pixels, out, channels, dtype.size().unwrap_or(1)),
        }
        Ok(())
    }

    fn origin_dtype(&self) -> DType {
        match &self.origin {
            Origin::Pixels(tensor) => tensor.dtype(),
            Origin::Encoded { .. } => DType::U8,
        }
    }

    /// The whole origin, packed, its size, and the region that is used if it was decoded at a
    /// fraction of its size. Whether the image is bad is decided as everywhere: by decoding what is
    /// needed of it.
    #[expect(clippy::type_complexity, reason = "used once, just above")]
    fn whole_origin(&self, tools: &mut Tools) -> Result<(Vec<u8>, (usize, usize), Option<Rect>)> {
        match &self.origin {
            Origin::Pixels(tensor) => Ok((tensor.data().to_vec(), self.size, None)),
            Origin::Encoded { bytes, header, gray, orientation, dct_scale } => {
                let (mode, shrink) = (mode(*gray), self.shrink(*dct_scale, header));
                if shrink > 1 {
                    let decoded = tools.decoder.decode_scaled(bytes, header, mode, shrink);
                    let pixels = decoded.map_err(bad)?.pixels;
                    let region = shrunk(self.region, shrink, &pixels);
                    return Ok((packed(pixels), (pixels.width, pixels.height), Some(region)));
                }
                let needed = if *orientation == 1 { self.needed() } else { whole(header) };
                tools.decoder.decode_region(bytes, header, mode, needed).map_err(bad)?;
                let decoded = tools.decoder.decode_full(bytes, header, mode, true).map_err(bad)?;
                if *orientation == 1 {
                    return Ok((packed(decoded.pixels), self.size, None));
                }
                codec::orient(decoded.pixels, *orientation, &mut tools.oriented);
                Ok((tools.oriented.clone(), self.size, None))
            }
        }
    }
}

fn mode(gray: bool) -> codec::Mode {
    if gray { codec::Mode::Gray } else { codec::Mode::Rgb }
}

fn bad(error: codec::CodecError) -> Error {
    Error::Record {
        origin: String::new(),
        index: 0,
        step: "decode".into(),
        reason: error.to_string(),
    }
}

fn whole(header: &Header) -> Rect {
    Rect::whole(header.width, header.height)
}

/// A view of a part of some pixels.
fn part(pixels: Pixels<'_>, rect: Rect) -> Pixels<'_> {
    let start = rect.y * pixels.stride + rect.x * pixels.channels;
    Pixels { data: &pixels.data[start..], width: rect.width, height: rect.height, ..pixels }
}

/// The region in a picture decoded at a fraction of its size.
fn shrunk(region: Rect, by: usize, pixels: &Pixels<'_>) -> Rect {
    let (x, y) = (region.x / by, region.y / by);
    Rect {
        x,
        y,
        width: (region.width / by).clamp(1, pixels.width - x),
        height: (region.height / by).clamp(1, pixels.height - y),
    }
}

/// Copies pixels without padding between rows or after pixels.
fn packed(pixels: Pixels<'_>) -> Vec<u8> {
    let channels = if pixels.channels == 1 { 1 } else { 3 };
    let mut out = vec![0; pixels.width * pixels.height * channels];
    let all = Rect::whole(pixels.width, pixels.height);
    convert_into(Level::Scalar, pixels, all, Target::plain(&mut out));
    out
}

/// A rectangle of interleaved pixels of `pixel` bytes each, mirrored or not.
fn rearrange(
    data: &[u8],
    (width, _): (usize, usize),
    pixel: usize,
    rect: Rect,
    flip_horizontal: bool,
    flip_vertical: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(rect.width * rect.height * pixel);
    for y in 0..rect.height {
        let y = rect.y + if flip_vertical { rect.height - 1 - y } else { y };
        for x in 0..rect.width {
            let x = rect.x + if flip_horizontal { rect.width - 1 - x } else { x };
            let start = (y * width + x) * pixel;
            out.extend_from_slice(&data[start..start + pixel]);
        }
    }
    out
}

/// Interleaved channels to planes.
pub(crate) fn to_planes(from: &[u8], to: &mut [u8], channels: usize, element: usize) {
    let plane = from.len() / channels;
    for (at, value) in from.chunks_exact(element).enumerate() {
        let start = (at % channels) * plane + (at / channels) * element;
        to[start..start + element].copy_from_slice(value);
    }
}

/// Planes to interleaved channels.
pub(crate) fn from_planes(from: &[u8], to: &mut [u8], channels: usize, element: usize) {
    let plane = from.len() / channels;
    for (at, value) in to.chunks_exact_mut(element).enumerate() {
        let start = (at % channels) * plane + (at / channels) * element;
        value.copy_from_slice(&from[start..start + element]);
    }
}

impl Deferred for Picture {
    fn dtype(&self) -> DType {
        self.pointwise.last().map_or_else(|| self.origin_dtype(), Pointwise::output)
    }

    fn shape(&self) -> Shape {
        let (width, height) = self.size();
        Shape::from_slice(&match self.layout {
            Layout::Hwc => [height, width, self.channels],
            Layout::Chw => [self.channels, height, width],
        })
    }

    fn write(mut self: Box<Self>, out: &mut [u8], context: &mut Context<'_>) -> Result<()> {
        match self.changes.take() {
            Some(changes) => self.simply(changes, out, context),
            None => self.compute(out, context),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A pooled buffer of pixels as a tensor.
pub(crate) fn pixels_tensor(
    pool: &Pool,
    (width, height): (usize, usize),
    channels: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Result<Tensor> {
    let mut buffer = pool.take(width * height * channels)?;
    fill(&mut buffer);
    Tensor::new(DType::U8, &[height, width, channels], buffer.freeze())
}

//! Files of arrays and scans, written byte by byte.

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use std::io::Write;

/// A `.npy` file of version 1.0: `descr` is NumPy's name of the type (`<f4`).
#[must_use]
pub fn npy(descr: &str, fortran: bool, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let sides: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let order = if fortran { "True" } else { "False" };
    let dict = format!(
        "{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}{comma}), }}",
        sides.join(", ")
    );
    // The numbers begin at a multiple of 64.
    let length = (10 + dict.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((length as u16).to_le_bytes());
    bytes.extend(format!("{dict:<width$}\n", width = length - 1).bytes());
    bytes.extend(data);
    bytes
}

/// A `.npz` archive of these members, stored or deflated.
///
/// # Panics
///
/// If they cannot be packed.
#[must_use]
pub fn npz(members: &[(&str, Vec<u8>)], deflated: bool) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let start = bytes.len() as u32;
        let packed = if deflated {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(data).expect("memory takes all bytes");
            encoder.finish().expect("memory takes all bytes")
        } else {
            data.clone()
        };
        let mut crc = flate2::Crc::new();
        crc.update(data);
        let mut row = Vec::new();
        row.extend([20, 0, 0, 0, if deflated { 8 } else { 0 }, 0, 0, 0, 0, 0]);
        row.extend(crc.sum().to_le_bytes());
        row.extend((packed.len() as u32).to_le_bytes());
        row.extend((data.len() as u32).to_le_bytes());
        row.extend((name.len() as u16).to_le_bytes());
        row.extend([0, 0]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&row);
        bytes.extend(name.bytes());
        bytes.extend(packed);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&row);
        directory.extend([0; 10]);
        directory.extend(start.to_le_bytes());
        directory.extend(name.bytes());
    }
    let offset = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

/// A NIfTI-1 file: `datatype` and `bits` of its numbers, distances of voxels, slope and intercept.
#[must_use]
pub fn nifti(
    (datatype, bits): (i16, i16),
    shape: &[usize],
    spacing: [f32; 3],
    scale: (f32, f32),
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; 352];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &348i32.to_le_bytes());
    put(40, &(shape.len() as i16).to_le_bytes());
    for (at, side) in shape.iter().enumerate() {
        put(42 + 2 * at, &(*side as i16).to_le_bytes());
    }
    put(70, &datatype.to_le_bytes());
    put(72, &bits.to_le_bytes());
    for (at, step) in spacing.iter().enumerate() {
        put(80 + 4 * at, &step.to_le_bytes());
    }
    put(108, &352f32.to_le_bytes());
    put(112, &scale.0.to_le_bytes());
    put(116, &scale.1.to_le_bytes());
    put(344, b"n+1\0");
    bytes.extend(data);
    bytes
}

/// Bytes packed by gzip.
///
/// # Panics
///
/// If they cannot be packed.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory takes all bytes");
    encoder.finish().expect("memory takes all bytes")
}

/// The intensities of scan `seed`: smooth, with a little texture, between -100 and 400.
#[must_use]
pub fn scan(seed: usize, shape: [usize; 3]) -> Vec<f32> {
    let [depth, height, width] = shape;
    let voxel = |z: usize, y: usize, x: usize| {
        let wave = (z * 31 + y * 17 + x * 5 + seed * 13) % 97;
        let texture = (x * 7 + y * 3 + z * 11 + seed) % 13;
        wave as f32 * 5.0 + texture as f32 * 0.25 - 100.0
    };
    (0..depth)
        .flat_map(|z| (0..height).flat_map(move |y| (0..width).map(move |x| voxel(z, y, x))))
        .collect()
}

/// The mask of scan `seed`: two blocks of class 1, one of class 2, and specks.
#[must_use]
pub fn mask(seed: usize, shape: [usize; 3]) -> Vec<u8> {
    let [depth, height, width] = shape;
    let voxel = |z: usize, y: usize, x: usize| {
        let at = |low: usize, side: usize| side * low / 8;
        let (near, far) = (at(2 + seed % 3, depth), at(6, depth));
        if z < near && y < at(3, height) && x >= at(5, width) {
            return 2;
        }
        let first = z >= near && z < far && y >= at(4, height) && x < at(3, width);
        let second = z >= near && y < at(2, height) && x >= at(6, width);
        let speck = (x * 5 + y * 3 + z * 7 + seed).is_multiple_of(41);
        u8::from(first || second || speck)
    };
    (0..depth)
        .flat_map(|z| (0..height).flat_map(move |y| (0..width).map(move |x| voxel(z, y, x))))
        .collect()
}

/// Numbers as the bytes of a little-endian file.
#[must_use]
pub fn little(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A row-major array of three axes with its first axis running fastest.
#[must_use]
pub fn first_fastest<T: Copy>(values: &[T], [depth, height, width]: [usize; 3]) -> Vec<T> {
    let mut out = Vec::with_capacity(values.len());
    for x in 0..width {
        for y in 0..height {
            for z in 0..depth {
                out.push(values[(z * height + y) * width + x]);
            }
        }
    }
    out
}

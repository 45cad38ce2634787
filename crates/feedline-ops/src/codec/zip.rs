//! The list of contents of a zip archive, as far as `.npz` files need it.
//!
//! ```text
//!  member … member │ directory: a row for each member │ (zip64 end) │ end
//! ```
//!
//! The directory is found from the end of the file. What a member's own header says is believed only
//! where the directory cannot know: how long that header is.

/// One member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name.
    pub name: String,
    /// Where its own header begins.
    pub start: u64,
    /// Bytes as stored.
    pub stored: u64,
    /// Bytes when unpacked.
    pub length: u64,
    /// Checksum of the unpacked bytes.
    pub crc: u32,
    /// Whether it is packed by deflate; otherwise it lies there as it is.
    pub deflated: bool,
}

/// Where the directory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub offset: u64,
    pub length: u64,
    pub members: u64,
}

/// Directories beyond this are refused.
const LONGEST: u64 = 64 << 20;
/// Bytes of the end record without its comment.
const END: usize = 22;
/// Bytes from the end of the file in which the end record is looked for.
pub(crate) const TAIL: u64 = END as u64 + 20 + 56 + 65_535;
/// Bytes of a member's own header, without its name and extra data.
pub(crate) const LOCAL: usize = 30;

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Finds the directory from the last bytes of a file of `size` bytes.
///
/// # Errors
///
/// If this is no archive, or a damaged one.
pub(crate) fn directory(tail: &[u8], size: u64) -> Result<Directory, String> {
    let damaged = || "it is no .npz file, or it is cut short: the end of its list is missing";
    let last = tail.len().checked_sub(END).ok_or_else(damaged)?;
    let end = (0..=last)
        .rev()
        .find(|at| {
            tail[*at..].starts_with(b"PK\x05\x06")
                && u16_at(tail, at + 20) == Some((last - at) as u64)
        })
        .ok_or_else(damaged)?;
    let small = (u16_at(tail, end + 10), u32_at(tail, end + 12), u32_at(tail, end + 16));
    let (Some(mut members), Some(mut length), Some(mut offset)) = small else {
        return Err(damaged().into());
    };
    let locator = end.checked_sub(20).filter(|at| tail[*at..].starts_with(b"PK\x06\x07"));
    if members == 0xFFFF || length == 0xFFFF_FFFF || offset == 0xFFFF_FFFF {
        // The wide record lies right before its locator in all files that are written.
        let wide = locator.and_then(|at| {
            let from_end =
                (tail.len() as u64).checked_sub(size.checked_sub(u64_at(tail, at + 8)?)?)?;
            let at = usize::try_from(from_end).ok()?;
            tail.get(at..)?.starts_with(b"PK\x06\x06").then_some(at)
        });
        let wide = wide.ok_or("its list of contents is damaged (zip64)")?;
        let wide = (u64_at(tail, wide + 32), u64_at(tail, wide + 40), u64_at(tail, wide + 48));
        let (Some(a), Some(b), Some(c)) = wide else { return Err(damaged().into()) };
        (members, length, offset) = (a, b, c);
    }
    if offset.checked_add(length).is_none_or(|end| end > size) || length > LONGEST {
        return Err("its list of contents does not lie within the file".into());
    }
    Ok(Directory { offset, length, members })
}

/// The members that a directory lists, in its order.
///
/// # Errors
///
/// If it is damaged, or a member is packed in a way that is not read here.
pub(crate) fn members(mut rows: &[u8], directory: Directory) -> Result<Vec<Member>, String> {
    let damaged = || "its list of contents is damaged".to_owned();
    let mut members = Vec::new();
    while !rows.is_empty() {
        let member = row(rows).ok_or_else(damaged)?;
        let (method, flags, member, length) = member;
        if flags & 1 != 0 {
            return Err(format!("{} is encrypted", member.name));
        }
        let deflated = match method {
            0 => false,
            8 => true,
            other => {
                return Err(format!(
                    "{} is packed by method {other}; stored and deflated ones are read",
                    member.name
                ));
            }
        };
        if !deflated && member.stored != member.length {
            return Err(damaged());
        }
        if member.start.checked_add(member.stored).is_none_or(|end| end > directory.offset) {
            return Err(format!("{} does not lie within the file", member.name));
        }
        members.push(Member { deflated, ..member });
        rows = &rows[length..];
    }
    if members.len() as u64 != directory.members {
        return Err(damaged());
    }
    Ok(members)
}

/// One row of the directory: method, flags, the member, and the row's length.
fn row(bytes: &[u8]) -> Option<(u64, u64, Member, usize)> {
    if !bytes.starts_with(b"PK\x01\x02") {
        return None;
    }
    let (flags, method) = (u16_at(bytes, 8)?, u16_at(bytes, 10)?);
    let crc = u32_at(bytes, 16)? as u32;
    let (mut stored, mut length) = (u32_at(bytes, 20)?, u32_at(bytes, 24)?);
    let (name, extra, comment) = (u16_at(bytes, 28)?, u16_at(bytes, 30)?, u16_at(bytes, 32)?);
    let mut start = u32_at(bytes, 42)?;
    let (name, extra, comment) = (name as usize, extra as usize, comment as usize);
    let text = bytes.get(46..46 + name)?;
    let mut more = bytes.get(46 + name..46 + name + extra)?;
    bytes.get(..46 + name + extra + comment)?;
    while more.len() >= 4 {
        let (id, size) = (u16_at(more, 0)?, u16_at(more, 2)? as usize);
        let data = more.get(4..4 + size)?;
        if id == 1 {
            // Only the numbers that did not fit are here, in this order.
            let mut at = 0;
            for value in [&mut length, &mut stored, &mut start] {
                if *value == 0xFFFF_FFFF {
                    *value = u64_at(data, at)?;
                    at += 8;
                }
            }
        }
        more = &more[4 + size..];
    }
    let name = String::from_utf8_lossy(text).into_owned();
    let member = Member { name, start, stored, length, crc, deflated: false };
    Some((method, flags, member, 46 + text.len() + extra + comment))
}

/// Where a member's bytes begin, from its own header.
///
/// # Errors
///
/// If there is no header.
pub(crate) fn data_start(member: &Member, header: &[u8]) -> Result<u64, String> {
    let lengths = u16_at(header, 26).zip(u16_at(header, 28));
    match lengths.filter(|_| header.starts_with(b"PK\x03\x04")) {
        Some((name, extra)) => Ok(member.start + LOCAL as u64 + name + extra),
        None => Err(format!("{} is not where the list of contents says", member.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_never_panics() {
        let mut row = b"PK\x01\x02".to_vec();
        row.extend([0; 42]);
        row[28] = 5;
        row.extend(b"a.npy");
        let directory = Directory { offset: 100, length: row.len() as u64, members: 1 };
        assert_eq!(members(&row, directory).unwrap()[0].name, "a.npy");
        for cut in 1..row.len() {
            assert!(members(&row[..cut], directory).is_err(), "{cut}");
        }
        let mut state = 7u32;
        for _ in 0..20_000 {
            let mut bytes = row.clone();
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (state >> 8) as usize % bytes.len();
            bytes[at] = (state >> 24) as u8;
            let _ = members(&bytes, directory);
        }
        assert!(super::directory(b"PK", 2).is_err());
        assert!(super::directory(&[0; 100], 100).is_err());
    }
}

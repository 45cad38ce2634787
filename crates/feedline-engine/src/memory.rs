//! How much memory there is.

use std::sync::OnceLock;

/// Where a container's limit is told, by the newer and the older kind of control groups.
const LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Bytes of memory this machine has, or this container may use if that is less; without an answer, as
/// much as can be addressed.
#[must_use]
pub fn machine_memory() -> u64 {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    *KNOWN.get_or_init(look_up)
}

fn look_up() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let limits = LIMITS.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    let limit = limits.filter_map(|text| text.trim().parse::<u64>().ok()).min();
    total.unwrap_or(1 << 46).min(limit.unwrap_or(u64::MAX))
}

/// The total in the words of `/proc/meminfo`.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("MemTotal"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_memory_is_read_from_what_the_kernel_tells() {
        let told = "MemFree:  12 kB\nMemTotal:       24101512 kB\nMemAvailable: 1 kB\n";
        assert_eq!(total_of(told), Some(24_101_512 * 1024));
        assert_eq!((total_of("MemTotal: many kB"), total_of("")), (None, None));
        assert!(machine_memory() > 1 << 20);
    }
}

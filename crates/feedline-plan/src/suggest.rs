//! "Did you mean …?"

/// The known word that is nearest to a misspelt one, if any is near enough to be meant.
#[must_use]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    if word.len() > 64 {
        return None;
    }
    let known: Vec<&str> = known.into_iter().collect();
    let near = |candidate: &&'a str| {
        let cost = distance(&word, &plain(candidate));
        let longest = word.chars().count().max(candidate.chars().count());
        (cost <= longest.div_ceil(3)).then_some((cost, *candidate))
    };
    let part = |candidate: &&&str| {
        word.len() >= 3 && (candidate.starts_with(&word) || candidate.split('_').any(|p| p == word))
    };
    let nearest = known.iter().filter_map(near).min_by_key(|(cost, _)| *cost);
    nearest.map(|(_, candidate)| candidate).or_else(|| known.iter().find(part).copied())
}

/// Edits (insert, delete, replace, swap neighbours) that turn one word into the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for (at, row) in rows.iter_mut().enumerate() {
        row[0] = at;
    }
    rows[0] = (0..=to.len()).collect();
    for i in 1..=from.len() {
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["shuffle", "batch", "random_resized_crop", "normalize"];
        assert_eq!(did_you_mean("shufle", known), Some("shuffle"));
        assert_eq!(did_you_mean("Batch", known), Some("batch"));
        assert_eq!(did_you_mean("normalise", known), Some("normalize"));
        assert_eq!(did_you_mean("random-resized-crop", known), Some("random_resized_crop"));
        assert_eq!(did_you_mean("crop", known), Some("random_resized_crop"));
        assert_eq!(did_you_mean("tokenize_text", known), None);
        assert_eq!(did_you_mean("", []), None);
    }
}

//! Patterns of names.

/// True if the name is the pattern, in which each `*` stands for any text, dots as well.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let ends = name.char_indices().map(|(i, _)| i).chain([name.len()]);
            ends.into_iter().any(|i| matches(rest, &name[i..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, name) in
            [("", ""), ("*", ""), ("*", "a.b"), ("a.*", "a.b.c"), ("*.weight", "a.0.weight"), ("a*c*e", "abcde")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a", "a.b"), ("a.*", "a"), ("*.weight", "weight"), ("a*c", "acb")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}

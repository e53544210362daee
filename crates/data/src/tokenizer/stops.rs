//! Texts that end a text.

/// Passes a text on until one of some texts occurs in it, which is left out. A part that may be the beginning of one of them is held back until more
/// text decides.
///
/// ```
/// use isograd_data::StopStrings;
///
/// let mut stops = StopStrings::new(["\nUser:"]);
/// assert_eq!([stops.push("Hello\n"), stops.push("Us"), stops.push("ual")], ["Hello", "", "\nUsual"]);
/// assert_eq!((stops.push(" text\nUser: yes"), stops.has_ended()), (" text".to_string(), true));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// What is held back.
    held: String,
    has_ended: bool,
}

impl StopStrings {
    /// These texts; empty ones end nothing.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> StopStrings {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty()).collect();
        StopStrings { stops, ..StopStrings::default() }
    }

    /// The text that can be passed on after this part. After the end, nothing.
    pub fn push(&mut self, part: &str) -> String {
        if self.has_ended {
            return String::new();
        }
        self.held.push_str(part);
        if let Some(end) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.has_ended = true;
            self.held.truncate(end);
            return std::mem::take(&mut self.held);
        }
        let is_beginning = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let kept = self.held.char_indices().map(|(at, _)| at).find(is_beginning).unwrap_or(self.held.len());
        let rest = self.held.split_off(kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// The text that was held back, of a text that ends without a stop.
    pub fn finish(self) -> String {
        self.held
    }

    /// True once one of the texts has occurred.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_of_any_length_end_at_the_first_stop(text in "[ab]{0,12}", stops in prop::collection::vec("[ab]{1,4}", 0..3), lengths in prop::collection::vec(1..4usize, 12)) {
            let end = stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
            let (mut found, mut rest, mut filter) = (String::new(), text.as_str(), StopStrings::new(stops));
            for length in lengths {
                let (part, after) = rest.split_at(length.min(rest.len()));
                found += &filter.push(part);
                rest = after;
            }
            prop_assert_eq!(filter.has_ended(), end.is_some());
            found += &filter.finish();
            // A longer stop may begin before one that ends first.
            match end {
                None => prop_assert_eq!(found, text),
                Some(end) => prop_assert!(text.starts_with(&found) && found.len() >= end),
            }
        }
    }

    #[test]
    fn what_may_be_a_stop_is_held_back() {
        let mut stops = StopStrings::new(["", "né", "abc"]);
        assert_eq!([stops.push("xn"), stops.push("n"), stops.push("ab"), stops.push("d")], ["x", "n", "n", "abd"]);
        assert_eq!([stops.push("ab"), stops.clone().finish()], ["", "ab"]);
        assert_eq!((stops.push("cd"), stops.has_ended(), stops.push("more")), (String::new(), true, String::new()));
    }
}

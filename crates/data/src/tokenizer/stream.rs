//! The text of tokens that come one at a time.

use super::Tokenizer;
use isograd_core::Result;

/// The tokens before a text that decide on its beginning.
const BEFORE: usize = 8;

/// Decodes tokens as they come. A character whose bytes are several tokens appears with the last of them. The parts together are the
/// text that [`Tokenizer::decode`] gives for all tokens.
///
/// ```
/// use isograd_data::{Bytes, TextStream};
///
/// # fn main() -> isograd_core::Result<()> {
/// let mut stream = TextStream::new(&Bytes);
/// assert_eq!([stream.push(0xc3)?, stream.push(0xa9)?, stream.push(0xc3)?, stream.finish()?], ["", "é", "", "\u{fffd}"]);
/// # Ok(())
/// # }
/// ```
pub struct TextStream<'a> {
    tokenizer: &'a dyn Tokenizer,
    /// The tokens of the last part, and those after it. A decoder may look at the tokens before.
    tokens: Vec<i64>,
    /// The number of these whose text was returned.
    returned: usize,
}

impl<'a> TextStream<'a> {
    /// A stream without tokens yet.
    pub fn new(tokenizer: &'a dyn Tokenizer) -> TextStream<'a> {
        TextStream { tokenizer, tokens: Vec::new(), returned: 0 }
    }

    /// A stream of tokens that follow others, whose text is not returned. Some tokenizers put a blank before a word that follows another.
    pub fn after(tokenizer: &'a dyn Tokenizer, tokens: &[i64]) -> TextStream<'a> {
        let last = tokens[tokens.len().saturating_sub(BEFORE)..].to_vec();
        TextStream { tokenizer, returned: last.len(), tokens: last }
    }

    /// The text that this token completes: none within a character. Errors: as [`Tokenizer::decode`].
    pub fn push(&mut self, token: i64) -> Result<String> {
        self.tokens.push(token);
        let part = self.pending()?;
        // The rest of the character may follow.
        if part.is_empty() || part.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.tokens.drain(..self.returned);
        self.returned = self.tokens.len();
        Ok(part)
    }

    /// The text of the tokens that are left, whose last character is not complete. Errors: as [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String> {
        self.pending()
    }

    /// The text that was not returned.
    fn pending(&self) -> Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.returned])?;
        let all = self.tokenizer.decode(&self.tokens)?;
        Ok(all.get(before.len()..).unwrap_or_default().to_string())
    }
}

impl std::fmt::Debug for TextStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextStream").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bytes, Characters};
    use super::*;
    use proptest::prelude::*;

    fn parts(tokenizer: &dyn Tokenizer, tokens: &[i64]) -> Vec<String> {
        let mut stream = TextStream::new(tokenizer);
        let mut parts: Vec<String> = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
        parts.push(stream.finish().unwrap());
        parts
    }

    proptest! {
        #[test]
        fn the_parts_of_any_bytes_are_their_text(bytes: Vec<u8>) {
            let tokens: Vec<i64> = bytes.iter().map(|&b| i64::from(b)).collect();
            prop_assert_eq!(parts(&Bytes, &tokens).concat(), Bytes.decode(&tokens).unwrap());
        }

        #[test]
        fn every_character_appears_with_its_last_byte(text in "[^\u{fffd}]*") {
            let expected: Vec<String> = text.chars().map(String::from).collect();
            let tokens = Bytes.encode(&text).unwrap();
            prop_assert_eq!(parts(&Bytes, &tokens).into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>(), expected);
            let characters = Characters::of(&text);
            let tokens = characters.encode(&text).unwrap();
            prop_assert_eq!(parts(&characters, &tokens).concat(), text);
        }
    }
}

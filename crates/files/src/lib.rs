//! Shared by readers of files: how they are opened, mapped files, archives, the types of elements in files, and the names of foreign formats.

mod archive;
mod bounds;
mod elements;
mod looks;
mod mapped;
mod open;

pub use archive::{Archive, Content, is_archive, pack};
pub use bounds::{Budget, MAX_LINE, MAX_PIXELS, Packing, held, most_ids, most_rows};
pub use elements::{Order, Stored, little_endian};
pub use looks::looks_like;
pub use mapped::Mapped;
pub use open::{open, read};

/// A result whose error says what is wrong with a file's content. The caller knows the path.
pub type Checked<T> = std::result::Result<T, String>;

//! One error type for the whole library: the op that failed, the kind of mistake, and what was expected.

use std::borrow::Cow;
use std::fmt;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of mistake that an [`Error`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Shapes do not fit together.
    Shape,
    /// An operand has the wrong dtype.
    Dtype,
    /// Operands live on different devices, or a device does not exist.
    Device,
    /// An attribute (dimension, probability, step, ...) is out of its range.
    Attr,
    /// An index lies outside of the indexed extent.
    Index,
    /// The data itself is invalid, or the operation is invalid in the present state.
    Value,
    /// The operation is not provided for this dtype or device.
    Unsupported,
    /// The device has no memory left.
    OutOfMemory,
    /// The backend failed.
    Backend,
    /// A file could not be read or written.
    Io,
    /// A file's content violates its format.
    Format,
}

/// An error: the op (or file) that failed, the kind of mistake, and a message that names the operands and the expected values.
///
/// [`Error::io`] and [`Error::system`] make one of an error of the system. `?` alone does not: with a second `From`, closures such as
/// `|x| Ok(f(x)?)` would need the type of their error.
pub struct Error(Box<Repr>);

struct Repr {
    op: Cow<'static, str>,
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    is_late: bool,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident $kind:ident;)*) => {
        impl Error {
            $($(#[$doc])* pub fn $name(op: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
                Self::new(Kind::$kind, op, message)
            })*
        }
    };
}

constructors! {
    /// A [`Kind::Shape`] error of `op`.
    shape Shape;
    /// A [`Kind::Dtype`] error of `op`.
    dtype Dtype;
    /// A [`Kind::Device`] error of `op`.
    device Device;
    /// A [`Kind::Attr`] error of `op`.
    attr Attr;
    /// A [`Kind::Index`] error of `op`.
    index Index;
    /// A [`Kind::Value`] error of `op`.
    value Value;
    /// A [`Kind::Unsupported`] error of `op`.
    unsupported Unsupported;
    /// A [`Kind::Backend`] error of `op`.
    backend Backend;
    /// A [`Kind::Format`] error; `op` is the file's path.
    format Format;
}

impl Error {
    /// An error of any kind.
    pub fn new(kind: Kind, op: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Error(Box::new(Repr { op: op.into(), kind, message: message.into(), source: None, is_late: false }))
    }

    /// A [`Kind::Io`] error. `action` is the attempted action, such as "reading".
    pub fn io(path: &std::path::Path, action: &str, source: std::io::Error) -> Self {
        let message = format!("{action} failed: {source}");
        Error::new(Kind::Io, path.display().to_string(), message).with_source(source)
    }

    /// A [`Kind::Io`] error of a call of the system that has no file, such as one on a socket: `.map_err(Error::system)`.
    pub fn system(source: std::io::Error) -> Self {
        Error::new(Kind::Io, "system", source.to_string()).with_source(source)
    }

    /// The same error, attributed to `op`, unless it is [`late`](Error::late).
    pub fn of(mut self, op: impl Into<Cow<'static, str>>) -> Self {
        if !self.0.is_late {
            self.0.op = op.into();
        }
        self
    }

    /// The same error, of a call that returned before: the op that comes upon it is not its own.
    pub fn late(mut self) -> Self {
        self.0.is_late = true;
        self
    }

    /// Keeps the error that caused this one. The message says it.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// The error that caused this one, such as the system's. It is not the `source` of this error, whose message says it already: a chain of
    /// errors that is printed says nothing twice.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }

    /// The op's name, or the path of the file.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The kind of mistake.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The message without op and kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.0.op, self.0.kind, self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    /// The source of the [`cause`](Error::cause).
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().and_then(std::error::Error::source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_chain_of_errors_says_a_cause_once() {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = Error::io("file".as_ref(), "reading", missing());
        assert_eq!(error.to_string(), format!("file: Io: reading failed: {}", missing()));
        assert!(error.source().is_none());
        let found = error.cause().and_then(|cause| cause.downcast_ref::<std::io::Error>());
        assert_eq!(found.unwrap().kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn an_error_of_the_system_becomes_one_of_the_library() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = Error::system(refused());
        assert_eq!((error.kind(), error.op(), error.message()), (Kind::Io, "system", &*refused().to_string()));
        let found = error.cause().and_then(|cause| cause.downcast_ref::<std::io::Error>());
        assert_eq!(found.unwrap().kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

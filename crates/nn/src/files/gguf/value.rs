//! The metadata of a GGUF file: values of 13 kinds, in little-endian order. ggml, "GGUF", `docs/gguf.md`.

use isograd_files::{Checked, held};
use std::fmt;

/// Arrays within each other, beyond which a file is refused.
const MAX_DEPTH: usize = 4;

/// The elements of an array that are printed.
const PRINTED: usize = 8;

/// The numbers of kinds that are no scalars.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// The bytes of a file from a place on, which errors name.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Cursor<'a> {
        Cursor { bytes, at }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next bytes. Errors: the file ends before.
    pub(super) fn take(&mut self, length: usize) -> Checked<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..length).ok_or_else(|| {
            format!("at byte {}: {length} bytes are expected, and the file has {} more", self.at, self.left())
        })?;
        self.at += length;
        Ok(taken)
    }

    pub(super) fn scalar<T: Scalar>(&mut self) -> Checked<T> {
        let at = self.at;
        T::of(self.take(T::SIZE)?).map_err(|why| format!("at byte {at}: {why}"))
    }

    /// A number of items, which have at least `least` bytes each. Errors: the file has no room for them.
    pub(super) fn count(&mut self, least: usize) -> Checked<usize> {
        let (at, count) = (self.at, self.scalar::<u64>()?);
        held(count, least, self.left()).map_err(|why| format!("at byte {at}: {why}"))
    }

    pub(super) fn text(&mut self) -> Checked<String> {
        let (at, length) = (self.at, self.count(1)?);
        let text = std::str::from_utf8(self.take(length)?);
        text.map(String::from).map_err(|_| format!("at byte {at}: a text that is not UTF-8"))
    }

    /// `count` values. Errors: those of `next`.
    fn list<T>(&mut self, least: usize, next: impl Fn(&mut Self) -> Checked<T>) -> Checked<Vec<T>> {
        let count = self.count(least)?;
        (0..count).try_fold(Vec::with_capacity(count), |mut list, _| {
            list.push(next(self)?);
            Ok(list)
        })
    }
}

/// A value of a fixed number of bytes.
pub(super) trait Scalar: Sized {
    const SIZE: usize;
    fn of(bytes: &[u8]) -> Checked<Self>;
    fn put(&self, bytes: &mut Vec<u8>);
}

impl Scalar for bool {
    const SIZE: usize = 1;

    fn of(bytes: &[u8]) -> Checked<bool> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(format!("a bool is {bytes:?}, expected 0 or 1")),
        }
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

macro_rules! numbers {
    ($($kind:ty)*) => {
        $(impl Scalar for $kind {
            const SIZE: usize = size_of::<$kind>();

            fn of(bytes: &[u8]) -> Checked<$kind> {
                bytes.try_into().map(<$kind>::from_le_bytes).map_err(|_| "the end of the file".to_string())
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
        })*
    };
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

pub(super) fn put_text(text: &str, bytes: &mut Vec<u8>) {
    (text.len() as u64).put(bytes);
    bytes.extend(text.as_bytes());
}

macro_rules! scalars {
    ($($number:literal $name:ident $kind:ident;)*) => {
        /// A value of the metadata.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Value {
            $($name($kind),)*
            Text(String),
            Array(Array),
        }

        /// An array of the metadata.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Array {
            $($name(Vec<$kind>),)*
            Text(Vec<String>),
            Array(Vec<Array>),
        }

        impl Value {
            /// A value of the kind with this number.
            fn read(kind: u32, cursor: &mut Cursor<'_>) -> Checked<Value> {
                Ok(match kind {
                    $($number => Value::$name(cursor.scalar()?),)*
                    TEXT => Value::Text(cursor.text()?),
                    ARRAY => Value::Array(Array::read(cursor, 1)?),
                    _ => return Err(unknown(kind, cursor)),
                })
            }

            fn kind(&self) -> u32 {
                match self {
                    $(Value::$name(_) => $number,)*
                    Value::Text(_) => TEXT,
                    Value::Array(_) => ARRAY,
                }
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Value::$name(value) => value.put(bytes),)*
                    Value::Text(text) => put_text(text, bytes),
                    Value::Array(array) => array.put(bytes),
                }
            }
        }

        impl Array {
            fn read(cursor: &mut Cursor<'_>, depth: usize) -> Checked<Array> {
                Ok(match cursor.scalar::<u32>()? {
                    $($number => Array::$name(cursor.list($kind::SIZE, Cursor::scalar)?),)*
                    TEXT => Array::Text(cursor.list(u64::SIZE, Cursor::text)?),
                    ARRAY if depth == MAX_DEPTH => {
                        return Err(format!("at byte {}: more than {MAX_DEPTH} arrays within each other", cursor.at));
                    }
                    ARRAY => Array::Array(cursor.list(u32::SIZE + u64::SIZE, |cursor| Array::read(cursor, depth + 1))?),
                    kind => return Err(unknown(kind, cursor)),
                })
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Array::$name(list) => put_list($number, list, bytes, $kind::put),)*
                    Array::Text(list) => put_list(TEXT, list, bytes, |text, bytes| put_text(text, bytes)),
                    Array::Array(list) => put_list(ARRAY, list, bytes, Array::put),
                }
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$name(list) => list.len(),)*
                    Array::Text(list) => list.len(),
                    Array::Array(list) => list.len(),
                }
            }

            /// True without elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// An element.
            pub fn get(&self, i: usize) -> Option<Value> {
                Some(match self {
                    $(Array::$name(list) => Value::$name(*list.get(i)?),)*
                    Array::Text(list) => Value::Text(list.get(i)?.clone()),
                    Array::Array(list) => Value::Array(list.get(i)?.clone()),
                })
            }
        }

        impl fmt::Display for Value {
            /// Of an array, the first elements and how many it has.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Value::$name(value) => write!(f, "{value}"),)*
                    Value::Text(text) => f.write_str(text),
                    Value::Array(array) => write!(f, "{array}"),
                }
            }
        }

        $(impl From<$kind> for Value {
            fn from(value: $kind) -> Value {
                Value::$name(value)
            }
        })*
    };
}

scalars! {
    0 U8 u8;
    1 I8 i8;
    2 U16 u16;
    3 I16 i16;
    4 U32 u32;
    5 I32 i32;
    6 F32 f32;
    7 Bool bool;
    10 U64 u64;
    11 I64 i64;
    12 F64 f64;
}

fn unknown(kind: u32, cursor: &Cursor<'_>) -> String {
    format!("at byte {}: a value of the kind {kind}, expected 0 to 12", cursor.at)
}

fn put_list<T>(kind: u32, list: &[T], bytes: &mut Vec<u8>, put: impl Fn(&T, &mut Vec<u8>)) {
    kind.put(bytes);
    (list.len() as u64).put(bytes);
    list.iter().for_each(|value| put(value, bytes));
}

impl Value {
    /// A value behind the number of its kind.
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Checked<Value> {
        let kind = cursor.scalar()?;
        Value::read(kind, cursor)
    }

    /// Writes the number of the kind, and the value.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        self.kind().put(bytes);
        self.put(bytes);
    }

    /// An integer of any kind.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => v.try_into().ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// An integer of any kind that is not negative.
    pub fn as_usize(&self) -> Option<usize> {
        self.as_i64()?.try_into().ok()
    }

    /// A number of any kind.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            Value::U64(v) => Some(v as f64),
            _ => self.as_i64().map(|v| v as f64),
        }
    }

    /// A bool.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(v) = *self { Some(v) } else { None }
    }

    /// A text.
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// An array of texts, such as the tokens of a vocabulary.
    pub fn as_texts(&self) -> Option<&[String]> {
        if let Value::Array(Array::Text(list)) = self { Some(list) } else { None }
    }

    /// An array of integers of any kind, such as the types of tokens.
    pub fn as_i64s(&self) -> Option<Vec<i64>> {
        self.elements(Value::as_i64)
    }

    /// An array of numbers of any kind, such as the scores of tokens.
    pub fn as_f64s(&self) -> Option<Vec<f64>> {
        self.elements(Value::as_f64)
    }

    /// An array of bools.
    pub fn as_bools(&self) -> Option<Vec<bool>> {
        self.elements(Value::as_bool)
    }

    fn elements<T>(&self, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        let Value::Array(array) = self else { return None };
        (0..array.len()).map(|i| read(&array.get(i)?)).collect()
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = (0..PRINTED).map_while(|i| self.get(i)).map(|value| value.to_string()).collect();
        let rest = if self.len() > PRINTED { ", .." } else { "" };
        write!(f, "[{}{rest}] ({})", shown.join(", "), self.len())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

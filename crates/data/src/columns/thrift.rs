//! Thrift's compact protocol, by which Parquet describes its files. Lengths are compared with what is there before anything is made.
//!
//! Source: "Thrift compact protocol encoding", Apache Thrift's documentation.

use isograd_files::Checked;

/// Structs and lists within each other, beyond which a file is refused.
const MAX_DEPTH: usize = 24;

/// A value. Of texts and floats nothing is kept.
#[derive(Debug)]
pub(super) enum Value {
    Number(i64),
    Bool(bool),
    Other,
    List(Vec<Value>),
    /// By the numbers of the fields.
    Struct(Vec<(i64, Value)>),
}

impl Value {
    pub(super) fn field(&self, number: i64) -> Option<&Value> {
        let Value::Struct(fields) = self else { return None };
        fields.iter().find(|(field, _)| *field == number).map(|(_, value)| value)
    }

    pub(super) fn number(&self, field: i64) -> Option<i64> {
        if let Some(Value::Number(v)) = self.field(field) { Some(*v) } else { None }
    }

    /// The elements of a list; none if it is absent.
    pub(super) fn list(&self, field: i64) -> &[Value] {
        if let Some(Value::List(list)) = self.field(field) { list } else { &[] }
    }
}

/// Reads a struct, and the number of its bytes. Errors: one that is damaged, cut off, or announces more than there is.
pub(super) fn read(bytes: &[u8]) -> Checked<(Value, usize)> {
    let mut reader = Reader { bytes, at: 0 };
    let value = reader.structure(0)?;
    Ok((value, reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const DAMAGED: &str = "its description is damaged";

impl Reader<'_> {
    fn byte(&mut self) -> Checked<u8> {
        let byte = *self.bytes.get(self.at).ok_or("its description is cut off")?;
        self.at += 1;
        Ok(byte)
    }

    /// A number in groups of seven bits, the lowest first.
    fn plain(&mut self) -> Checked<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DAMAGED.into())
    }

    /// A number whose lowest bit is the sign.
    fn signed(&mut self) -> Checked<i64> {
        self.plain().map(|v| (v >> 1) as i64 ^ -((v & 1) as i64))
    }

    fn skip(&mut self, bytes: u64) -> Checked<()> {
        self.at += self.room(bytes)?;
        Ok(())
    }

    /// A number of bytes or elements, each of which takes a byte or more.
    fn room(&self, count: u64) -> Checked<usize> {
        let left = (self.bytes.len() - self.at) as u64;
        if count <= left {
            Ok(count as usize)
        } else {
            Err(format!("it announces {count} where {left} bytes are left"))
        }
    }

    fn structure(&mut self, depth: usize) -> Checked<Value> {
        if depth > MAX_DEPTH {
            return Err(DAMAGED.into());
        }
        let (mut fields, mut number) = (Vec::new(), 0i64);
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Ok(Value::Struct(fields));
            }
            number = match byte >> 4 {
                0 => self.signed()?,
                step => number.wrapping_add(step.into()),
            };
            let value = match byte & 0xf {
                1 => Value::Bool(true),
                2 => Value::Bool(false),
                kind => self.value(kind, depth)?,
            };
            fields.push((number, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Checked<Value> {
        Ok(match kind {
            1 | 2 => Value::Bool(self.byte()? == 1),
            3 => Value::Number((self.byte()? as i8).into()),
            4..=6 => Value::Number(self.signed()?),
            7 => self.skip(8).map(|()| Value::Other)?,
            8 => {
                let length = self.plain()?;
                self.skip(length)?;
                Value::Other
            }
            9 | 10 => {
                let byte = self.byte()?;
                let count = if byte >> 4 == 15 { self.plain()? } else { (byte >> 4).into() };
                let elements = 0..self.room(count)?;
                Value::List(elements.map(|_| self.element(byte & 0xf, depth)).collect::<Checked<_>>()?)
            }
            11 => {
                let count = self.plain()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..self.room(count)? {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 0xf, depth)?;
                }
                Value::Other
            }
            12 => self.structure(depth + 1)?,
            13 => self.skip(16).map(|()| Value::Other)?,
            _ => return Err(DAMAGED.into()),
        })
    }

    fn element(&mut self, kind: u8, depth: usize) -> Checked<Value> {
        if depth > MAX_DEPTH { Err(DAMAGED.into()) } else { self.value(kind, depth + 1) }
    }
}

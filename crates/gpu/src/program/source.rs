//! Sources of kernels: which text a device's compiler receives.
//!
//! A text is the definitions of a variant, the dialect's prelude, the names of integers, the common header, the function of a row of the
//! pointwise table if the variant has one, and one file or generated text. A dialect's own file takes the place of the
//! common one. With `ISOGRAD_KERNELS` the files are read from that folder, which is laid out as the repository is.

use crate::driver::Dialect;
use crate::program::names::Names;
use hmac_sha256::Hash as Sha256;
use isograd_core::pointwise::{Pointwise, c_source};
use isograd_core::{DType, Error, Result};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::path::PathBuf;

/// The common sources, by name: the files of `kernels/`.
pub use isograd_kernels::COMMON as FILES;

/// Definitions of functions that a row of floats calls by other names than the prelude's. Powers with a common exponent of 1 or 2
/// need no logarithm. The divisor of `quotient_` is between 1 and 2. `NEAR` is defined where results are rounded to 16 bits.
pub const FLOATS: &str = "\
#ifdef NEAR
#define divide_(a, b) divide_near_(a, b)
#else
#define divide_(a, b) ((a) / (b))
#endif
#define quotient_ divide_
#define abs_ fabs_
#define pow_ powr_
#define pow_of_(x, y) ((y) == 1 ? (x) : (y) == 2 ? (x) * (x) : powr_(x, y))
";

/// Functions whose results are rounded to 16 bits.
const NEAR: &str = "\
#undef expm1_
#define expm1_ expm1_near_
#undef log_
#define log_ log_near_
#undef log1p_
#define log1p_ log1p_near_
#undef powr_
#define powr_ pow_near_
#undef tanh_
#define tanh_ tanh_near_
#undef quotient_
#define quotient_ divide_near_
";

/// Definitions of less exact functions for a row, if all its results are rounded to 16 bits; else none.
pub fn near(acc: DType, results: &[DType]) -> &'static str {
    if acc == DType::F32 && results.iter().all(|d| d.size() == 2) { NEAR } else { "" }
}

/// The value of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A number.
    Int(i64),
    /// A word.
    Word(&'static str),
}

impl From<i64> for Value {
    fn from(v: i64) -> Value {
        Value::Int(v)
    }
}

impl From<usize> for Value {
    /// A number beyond 64 bits becomes the largest, which [`assemble`] refuses too.
    fn from(v: usize) -> Value {
        Value::Int(i64::try_from(v).unwrap_or(i64::MAX))
    }
}

impl From<DType> for Value {
    fn from(dtype: DType) -> Value {
        Value::Word(dtype.name())
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Value {
        Value::Int(v as i64)
    }
}

impl From<&'static str> for Value {
    fn from(v: &'static str) -> Value {
        Value::Word(v)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(v) => write!(f, "{v}"),
            Value::Word(v) => f.write_str(v),
        }
    }
}

/// A program: a file, or the name of what generates the text, and definitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// The file's name.
    pub file: &'static str,
    /// Definitions, in the order that the host code writes them.
    pub defines: SmallVec<[(&'static str, Value); 8]>,
    /// The row of floats whose function the file calls, by its name. Its arithmetic is in the type `A`, which is defined.
    pub row: Option<Pointwise>,
    /// The file in the place of `matrix/loader.h`.
    pub loader: Option<&'static str>,
}

impl Variant {
    /// A file without definitions.
    pub fn new(file: &'static str) -> Variant {
        Variant { file, defines: SmallVec::new(), row: None, loader: None }
    }

    /// Adds a definition.
    pub fn define(mut self, name: &'static str, value: impl Into<Value>) -> Variant {
        self.defines.push((name, value.into()));
        self
    }

    /// Adds a definition that may be absent.
    pub fn optional(self, name: &'static str, value: Option<impl Into<Value>>) -> Variant {
        match value {
            Some(value) => self.define(name, value),
            None => self,
        }
    }

    /// Defines a name as 1 if a condition holds.
    pub fn flag(self, name: &'static str, is_set: bool) -> Variant {
        self.optional(name, is_set.then_some(true))
    }

    /// Defines the names whose conditions hold as 1.
    pub fn flags<const N: usize>(self, flags: [(&'static str, bool); N]) -> Variant {
        flags.into_iter().fold(self, |variant, (name, is_set)| variant.flag(name, is_set))
    }

    /// Computes in `acc`, which is `ACC`: `INTEGER` is defined for i64, `NEEDS_F64` for f64.
    pub fn arithmetic(self, acc: DType) -> Variant {
        self.define("ACC", acc).flags([("INTEGER", acc == DType::I64), ("NEEDS_F64", acc == DType::F64)])
    }

    /// Stores elements of a dtype, which is `T`, and computes in its accumulation dtype.
    pub fn stored(self, dtype: DType) -> Variant {
        self.define("T", dtype).arithmetic(dtype.acc())
    }

    /// Moves words of `vector` elements of `size` bytes: `VECTOR` and `WORD`.
    pub fn words(self, vector: usize, size: usize) -> Variant {
        self.define("VECTOR", vector).define("WORD", word(vector * size))
    }

    /// Moves `bytes` that may be more than one word: the type of a word and the number of words, by these names.
    pub fn in_pieces(self, [name, count]: [&'static str; 2], bytes: usize) -> Variant {
        self.define(name, word(bytes.min(16))).define(count, bytes.div_ceil(16))
    }

    /// Puts the function of a row of floats before the file.
    pub fn calling(self, row: Pointwise) -> Variant {
        Variant { row: Some(row), ..self }
    }

    /// A program whose generated text the other definitions do not tell.
    pub fn of_text(self, text: &str) -> Variant {
        let digest = Sha256::hash(text.as_bytes());
        let words =
            digest.chunks_exact(4).map(|word| i64::from(i32::from_le_bytes([word[0], word[1], word[2], word[3]])));
        ["TEXT0", "TEXT1", "TEXT2", "TEXT3"].into_iter().zip(words).fold(self, |v, (name, word)| v.define(name, word))
    }

    /// Reads the factors of a product as this file says, which takes the place of `matrix/loader.h`.
    pub fn loading(self, loader: &'static str) -> Variant {
        Variant { loader: Some(loader), ..self }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.row.map_or(Ok(()), |row| write!(f, " {}", row.name()))?;
        self.loader.map_or(Ok(()), |loader| write!(f, " {loader}"))
    }
}

/// The type of a word of so many bytes, which moves at once.
pub fn word(bytes: usize) -> &'static str {
    match bytes {
        16 => "u32x4",
        8 => "u32x2",
        4 => "u32",
        2 => "u16",
        _ => "u8",
    }
}

/// The whole text of a variant. `generated` takes the place of the file. An integer that does not fit
/// a kernel's `int`, the type in which kernels compute with definitions, is an error.
pub fn assemble(dialect: &Dialect, variant: &Variant, names: &Names, generated: Option<&str>) -> Result<String> {
    let mut assembly = Assembly { dialect, loader: variant.loader.unwrap_or(LOADER), text: String::new() };
    for (name, value) in &variant.defines {
        if let Value::Int(v) = value
            && i32::try_from(*v).is_err()
        {
            return Err(Error::backend("compile", format!("{name} is {v}, which does not fit 32 bits")));
        }
        // Writing to a String cannot fail.
        let _ = writeln!(assembly.text, "#define {name} {value}");
    }
    assembly.include("prelude.h")?;
    assembly.text += &names.to_string();
    assembly.include("common.h")?;
    if let Some(row) = variant.row {
        assembly.append(row.name(), &(FLOATS.to_string() + &c_source(row)))?;
    }
    match generated {
        Some(generated) => assembly.append(variant.file, generated)?,
        None => assembly.include(variant.file)?,
    }
    Ok(assembly.text)
}

/// The file by which products read their factors.
const LOADER: &str = "matrix/loader.h";

/// A text that is being put together.
struct Assembly<'a> {
    dialect: &'a Dialect,
    /// The file in the place of [`LOADER`].
    loader: &'static str,
    text: String,
}

impl Assembly<'_> {
    fn include(&mut self, name: &str) -> Result<()> {
        let name = if name == LOADER { self.loader } else { name };
        self.append(name, &find(self.dialect, name)?)
    }

    /// Adds a file with those that it includes, so that compilers and debuggers name each and its own lines.
    fn append(&mut self, name: &str, contents: &str) -> Result<()> {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "#line 1 \"{name}\"");
        for (i, line) in contents.lines().enumerate() {
            match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
                Some(file) => {
                    self.include(file)?;
                    let _ = writeln!(self.text, "#line {} \"{name}\"", i + 2);
                }
                None => {
                    let _ = writeln!(self.text, "{line}");
                }
            }
        }
        Ok(())
    }
}

/// A file of the dialect, or else the common one.
pub(crate) fn find(dialect: &Dialect, name: &str) -> Result<Cow<'static, str>> {
    if let Some(root) = std::env::var_os("ISOGRAD_KERNELS") {
        let root = PathBuf::from(root);
        let mut own = dialect.folders.iter().map(|folder| root.join(folder).join(name));
        let path = own.find(|path| path.exists()).unwrap_or_else(|| root.join("kernels").join(name));
        return std::fs::read_to_string(&path).map(Cow::Owned).map_err(|e| Error::io(&path, "reading", e));
    }
    let mut all = dialect.files.iter().chain(FILES);
    match all.find(|(file, _)| *file == name) {
        Some((_, text)) => Ok(Cow::Borrowed(*text)),
        None => Err(Error::backend("compile", format!("there is no kernel file {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static DIALECT: Dialect = Dialect {
        name: "null",
        folders: &[],
        files: &[("prelude.h", ""), ("turned.h", "// factors of columns")],
        mma: &[],
    };

    #[test]
    fn a_definition_beyond_a_kernels_int_is_refused() {
        let text = |v: usize| {
            assemble(&DIALECT, &Variant::new("matrix/matmul.c").define("TILE_M", v), &Names::default(), None)
        };
        assert!(text(i32::MAX as usize).is_ok());
        // The last two would be small or negative in fewer bits.
        for v in [1 << 31, 1 << 32, usize::MAX] {
            assert!(text(v).unwrap_err().to_string().contains("TILE_M"), "{v}");
        }
    }

    #[test]
    fn a_product_reads_its_factors_by_the_file_that_it_is_given() {
        let plain = Variant::new("matrix/matmul.c");
        let text = |variant: &Variant| assemble(&DIALECT, variant, &Names::default(), None).unwrap();
        let (own, other) = (text(&plain), text(&plain.clone().loading("turned.h")));
        assert!(own.contains("#line 1 \"matrix/loader.h\"\n") && !own.contains("factors of columns"));
        assert!(other.contains("#line 1 \"turned.h\"\n// factors of columns\n") && !other.contains("SIDE_B 1"));
        assert_ne!(plain, plain.clone().loading("turned.h"));
        assert!(assemble(&DIALECT, &plain.loading("rows.h"), &Names::default(), None).is_err());
    }
}

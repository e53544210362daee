//! The names by which a kernel reads its integers.

use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};

/// How a kernel reads what has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerKind {
    /// One integer, `i64`.
    Integer,
    /// One integer as a position, `idx`.
    Position,
    /// Several integers, by their number.
    Integers,
    /// Several positions, by their number.
    Positions,
    /// A position that the kernel divides by, and its divider, by the name after `BY_`.
    Divisor,
    /// Several of them, by their number.
    Divisors,
}

/// The names of the integers of `p`, a kernel's struct, in order. A program defines them, and is compiled for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Each with the position of its first integer.
    list: SmallVec<[(&'static str, IntegerKind, u32); 16]>,
    /// Integers.
    count: u32,
}

impl Names {
    /// Whether there is no `p`.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds the name of the next `count` integers.
    pub fn push(&mut self, name: &'static str, kind: IntegerKind, count: usize) {
        self.list.push((name, kind, self.count));
        self.count += count as u32;
    }

    /// Adds the names of further integers.
    pub fn extend(&mut self, others: &Names) {
        self.list.extend(others.list.iter().map(|&(name, kind, position)| (name, kind, self.count + position)));
        self.count += others.count;
    }
}

/// The definitions, for the text of a program.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_empty() {
            writeln!(f, "#define INTS {}", self.count.max(1))?;
        }
        self.list.iter().try_for_each(|&(name, kind, position)| match kind {
            IntegerKind::Integer => writeln!(f, "#define {name} p.v[{position}]"),
            IntegerKind::Position => writeln!(f, "#define {name} ((idx)p.v[{position}])"),
            IntegerKind::Integers => writeln!(f, "#define {name}(i) p.v[{position} + (i)]"),
            IntegerKind::Positions => writeln!(f, "#define {name}(i) ((idx)p.v[{position} + (i)])"),
            IntegerKind::Divisor => {
                writeln!(f, "#define {name} ((idx)p.v[{position}])\n#define BY_{name} p.v[{}]", position + 1)
            }
            IntegerKind::Divisors => {
                writeln!(f, "#define {name}(i) ((idx)p.v[{position} + 2 * (i)])")?;
                writeln!(f, "#define BY_{name}(i) p.v[{} + 2 * (i)]", position + 1)
            }
        })
    }
}

/// By counts, since every launch looks up its program: programs with equal definitions rarely differ in names alone.
impl Hash for Names {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.list.len(), self.count).hash(state);
    }
}

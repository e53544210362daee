//! Rows evaluated with text: C source for the GPU dialects.
//!
//! Every operation becomes one statement with a name of its own, so that a value used twice is computed once. Functions have the
//! names of C99's `math.h` with a trailing underscore; the prelude of a dialect defines them.

use super::value::{Integer, Real, Value};
use super::{Domain, Pointwise, Row, Visitor};
use std::cell::RefCell;
use std::fmt::Write;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// A value of the C function under construction, and whether it is the same for all elements.
#[derive(Clone, Copy)]
pub struct CText(Name, bool);

#[derive(Clone, Copy)]
enum Name {
    Input(usize),
    Attribute(usize),
    Local(usize),
    Constant(f64),
}

/// A comparison's result, an `int`.
#[derive(Clone, Copy)]
pub struct CMask(usize);

#[derive(Default)]
struct Body {
    text: String,
    locals: usize,
}

thread_local! {
    static BODY: RefCell<Body> = RefCell::default();
}

fn statement(ctype: &str, expression: std::fmt::Arguments<'_>) -> usize {
    BODY.with_borrow_mut(|body| {
        let id = body.locals;
        body.locals += 1;
        // Writing to a String cannot fail.
        let _ = writeln!(body.text, "    {ctype} t{id} = {expression};");
        id
    })
}

fn value(expression: std::fmt::Arguments<'_>) -> CText {
    CText(Name::Local(statement("A", expression)), false)
}

fn mask(expression: std::fmt::Arguments<'_>) -> CMask {
    CMask(statement("int", expression))
}

impl std::fmt::Display for CText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Name::Input(i) => write!(f, "x{i}"),
            Name::Attribute(i) => write!(f, "k{i}"),
            Name::Local(i) => write!(f, "t{i}"),
            Name::Constant(v) => write!(f, "(A){v:?}"),
        }
    }
}

/// The C function `void name(A x0, .., A k0, .., A *y0, ..)` of a row, where `A` is the dialect's arithmetic type. A row with a
/// check is preceded by `int name_check(A x0, .., A k0, ..)`, which returns 0 for an invalid element.
pub fn c_source(row: Pointwise) -> String {
    struct Evaluate;
    impl Visitor<CText, CMask> for Evaluate {
        type Output = (Option<(CMask, String)>, Vec<CText>);
        fn visit<R: Row<CText, CMask, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Self::Output {
            let x = std::array::from_fn(|i| CText(Name::Input(i), false));
            let k = std::array::from_fn(|i| CText(Name::Attribute(i), true));
            BODY.take();
            let check = R::check(x, k).map(|mask| (mask, BODY.take().text));
            BODY.take();
            (check, R::eval(x, k).to_vec())
        }
    }
    let result = match row.domain() {
        Domain::Integer => row.visit_integer::<CText, _>(Evaluate),
        Domain::Real | Domain::Any => row.visit_real::<CText, _>(Evaluate),
    };
    let body = BODY.take().text;
    let (check, outputs) = result.unwrap_or_default();
    let name = row.name();
    let inputs = (0..row.inputs()).map(|i| format!("A x{i}")).chain((0..row.attributes()).map(|i| format!("A k{i}")));
    let inputs = inputs.collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    // Writing to a String cannot fail.
    if let Some((CMask(mask), body)) = check {
        let _ = writeln!(text, "FUNCTION int {name}_check({inputs}) {{\n{body}    return t{mask};\n}}");
    }
    let separator = if inputs.is_empty() { "" } else { ", " };
    let pointers = (0..row.outputs()).map(|i| format!("A *y{i}")).collect::<Vec<_>>().join(", ");
    let _ = write!(text, "FUNCTION void {name}({inputs}{separator}{pointers}) {{\n{body}");
    for (i, y) in outputs.iter().enumerate() {
        let _ = writeln!(text, "    *y{i} = {y};");
    }
    text + "}\n"
}

macro_rules! operators {
    ($($op:ident $f:ident $form:literal;)*) => {$(
        impl $op for CText {
            type Output = CText;
            fn $f(self, other: CText) -> CText {
                CText(value(format_args!($form, self, other)).0, self.1 && other.1)
            }
        }
    )*};
}

operators! { Add add "{} + {}"; Sub sub "{} - {}"; Mul mul "{} * {}"; Div div "divide_({}, {})"; }

impl Neg for CText {
    type Output = CText;
    fn neg(self) -> CText {
        value(format_args!("-{self}"))
    }
}

impl BitAnd for CMask {
    type Output = CMask;
    fn bitand(self, other: CMask) -> CMask {
        mask(format_args!("t{} && t{}", self.0, other.0))
    }
}

impl BitOr for CMask {
    type Output = CMask;
    fn bitor(self, other: CMask) -> CMask {
        mask(format_args!("t{} || t{}", self.0, other.0))
    }
}

impl Not for CMask {
    type Output = CMask;
    fn not(self) -> CMask {
        mask(format_args!("!t{}", self.0))
    }
}

impl Value for CText {
    type Mask = CMask;

    fn c(v: f64) -> CText {
        CText(Name::Constant(v), true)
    }
    fn lt(self, other: CText) -> CMask {
        mask(format_args!("{self} < {other}"))
    }
    fn le(self, other: CText) -> CMask {
        mask(format_args!("{self} <= {other}"))
    }
    fn eq(self, other: CText) -> CMask {
        mask(format_args!("{self} == {other}"))
    }
    fn select(mask: CMask, yes: CText, no: CText) -> CText {
        value(format_args!("t{} ? {yes} : {no}", mask.0))
    }
    fn abs(self) -> CText {
        value(format_args!("abs_({self})"))
    }
}

macro_rules! functions {
    ($($name:ident($($other:ident)?);)*) => {$(
        fn $name(self $(, $other: CText)?) -> CText {
            value(format_args!(concat!(stringify!($name), "_({}", $(functions!(@comma $other),)? ")"), self $(, $other)?))
        }
    )*};
    (@comma $other:ident) => { ", {}" };
}

impl Real for CText {
    functions! {
        exp(); expm1(); exp2(); log(); log2(); log10(); log1p(); sqrt(); sin(); cos(); tan(); asin(); acos(); atan();
        sinh(); cosh(); tanh(); asinh(); acosh(); atanh(); erf(); erfc(); floor(); ceil(); trunc(); round();
        normal_cdf(); atan2(x); fmod(other);
    }
    fn sigmoid(self) -> CText {
        let (zero, one) = (CText::c(0.0), CText::c(1.0));
        let e = (-self.abs()).exp();
        let (numerator, divisor) = (CText::select(self.lt(zero), e, one), one + e);
        // The divisor is between 1 and 2, where a quick quotient is nearly exact.
        value(format_args!("quotient_({numerator}, {divisor})"))
    }
    fn pow(self, other: CText) -> CText {
        // All threads take the same branch: they do not diverge.
        value(format_args!("{}({self}, {other})", if other.1 { "pow_of_" } else { "pow_" }))
    }
}

impl Integer for CText {
    functions! {
        div_floor(other); div_trunc(other); pow(other); and(other); or(other); xor(other); shift_left(other);
        shift_right(other);
    }
}

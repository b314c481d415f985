//! [`Descr`]: the fields of a struct, as NumPy's array interface lists them.
//!
//! Most dicts with a `descr` repeat the typestr in it (`[('', '<f4')]`), which is [`Descr::Trivial`].

use std::fmt;

use crate::protocol::dtype::{Kind, ONE_FIELD, TypeStr};
use crate::protocol::rule::{Field, Rule, Violation};

/// The deepest nesting that is accepted.
const MAX_DEPTH: u8 = 8;
/// The most fields on all levels together: a list may contain the same list a thousand times, eight
/// levels deep.
const MAX_FIELDS: usize = 1024;

/// The `descr` entry.
///
/// ```
/// use cai_dlpack::protocol::dtype::TypeStr;
/// use cai_dlpack::protocol::interface::{Descr, DescrBuilder};
///
/// // NumPy writes `[('', '<f4')]` beside the typestr of plain numbers: a field that says nothing.
/// let mut fields = DescrBuilder::new();
/// fields.push("", "<f4", &[])?;
/// assert_eq!(fields.finish(TypeStr::parse_any_order("<f4")?)?, Descr::Trivial);
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Descr {
    /// Absent, or None.
    #[default]
    None,
    /// One unnamed field that repeats the typestr.
    Trivial,
    /// A struct.
    Fields(Box<[DescrField]>),
}

impl Descr {
    /// Checks that the fields of a struct fill its item.
    #[inline]
    pub(super) fn check_size(&self, typestr: TypeStr) -> Result<(), Violation> {
        match self {
            Self::None | Self::Trivial => Ok(()),
            Self::Fields(fields) => check_total(fields, typestr),
        }
    }

    /// Returns the names of the fields; none if it is no struct.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let fields: &[DescrField] = match self {
            Self::Fields(fields) => fields,
            Self::None | Self::Trivial => &[],
        };
        fields
            .iter()
            .map(|field| &*field.name)
            .filter(|name| !name.is_empty())
    }

    /// Whether a struct, on any level, has padding: bytes without a name.
    #[cfg(feature = "pyo3")]
    pub(crate) fn has_padding(&self) -> bool {
        fn any(fields: &[DescrField]) -> bool {
            let has = |field: &DescrField| field.is_padding() || field.nested().is_some_and(any);
            fields.iter().any(has)
        }
        matches!(self, Self::Fields(fields) if any(fields))
    }

    /// Whether a field, on any level, has items of such a type.
    pub(crate) fn has_field(&self, is_such: impl Fn(TypeStr) -> bool) -> bool {
        fn any(fields: &[DescrField], is_such: &dyn Fn(TypeStr) -> bool) -> bool {
            fields.iter().any(|field| match field.nested() {
                Some(inner) => any(inner, is_such),
                None => is_such(field.typestr),
            })
        }
        matches!(self, Self::Fields(fields) if any(fields, &is_such))
    }

    /// Whether a field, on any level, is a reference to an object.
    pub(super) fn has_objects(&self) -> bool {
        self.has_field(|typestr| typestr.kind() == Kind::Object)
    }

    /// Builds the refusal of a field that is, on any level, a reference to an object.
    pub(super) fn refuse_objects(&self) -> Option<Violation> {
        fn find(fields: &[DescrField]) -> Option<&DescrField> {
            fields.iter().find_map(|field| match field.typestr.kind() {
                Kind::Object => Some(field),
                _ => field.nested().and_then(find),
            })
        }
        let Self::Fields(fields) = self else {
            return None;
        };
        let field = find(fields)?;
        let found = format_args!("'{}' of field '{}'", field.typestr, field.name);
        let violation = Violation::new(Rule::TypestrObject, Field::CaiDescr, found);
        Some(violation.with_hint("make an array of the other fields with the producer"))
    }

    pub(super) fn find(&self, name: &str) -> Result<&DescrField, Violation> {
        let argument = Field::Argument("name");
        let Self::Fields(fields) = self else {
            let found = format_args!("'{name}'");
            return Err(Violation::new(Rule::FieldNone, argument, found));
        };
        fields
            .iter()
            .find(|field| !name.is_empty() && (*field.name == *name || field.title() == Some(name)))
            .ok_or_else(|| {
                Violation::new(Rule::FieldUnknown, argument, format_args!("'{name}'"))
                    .with_hint(format!("it has {}", Names(fields)))
            })
    }
}

/// One field of a struct. Unnamed bytes are padding; any other field without a name is called `f0`, `f1`, ... by its
/// place, as NumPy does.
///
/// ```
/// use cai_dlpack::protocol::dtype::TypeStr;
/// use cai_dlpack::protocol::interface::{Descr, DescrBuilder};
///
/// let mut fields = DescrBuilder::new();
/// fields.push("rgb", "|u1", &[3])?;
/// fields.set_title("colour");
/// fields.push("alpha", "|u1", &[])?;
/// let Descr::Fields(fields) = fields.finish(TypeStr::parse("|V4")?)? else { unreachable!() };
/// let (rgb, alpha) = (&fields[0], &fields[1]);
/// assert_eq!((rgb.name(), rgb.title(), rgb.shape()), ("rgb", Some("colour"), &[3][..]));
/// assert_eq!((alpha.typestr().itemsize(), alpha.offset()), (1, 3));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescrField {
    name: Box<str>,
    title: Option<Box<str>>,
    typestr: TypeStr,
    shape: Box<[i64]>,
    offset: u32,
    nested: Option<Box<[DescrField]>>,
}

impl DescrField {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the title, a second name that NumPy's fields may have.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Returns the type of one element, in any byte order; `V` for a nested struct.
    #[must_use]
    pub const fn typestr(&self) -> TypeStr {
        self.typestr
    }

    /// Returns the extents of a field that is an array; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns the distance in bytes from the start of the item.
    #[must_use]
    pub const fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns the strides of the field's own axes, in bytes.
    pub(super) fn byte_strides(&self) -> Vec<i64> {
        let mut step = i64::from(self.typestr.itemsize());
        let mut strides: Vec<i64> = Vec::with_capacity(self.shape.len());
        for extent in self.shape.iter().rev() {
            strides.push(step);
            step = step.saturating_mul(*extent); // the builder held it below 2**32
        }
        strides.reverse();
        strides
    }

    /// Returns the fields of a nested struct.
    pub(crate) fn descr(&self) -> Descr {
        self.nested.clone().map_or(Descr::None, Descr::Fields)
    }

    /// Returns the fields of a nested struct.
    pub(crate) fn nested(&self) -> Option<&[Self]> {
        self.nested.as_deref()
    }

    fn is_padding(&self) -> bool {
        self.name.is_empty() && self.nested.is_none() && self.typestr.kind() == Kind::Void
    }
}

/// Names the fields that have no name, and checks that each name and title occurs once.
///
/// # Errors
/// `descr-names` (ValueError).
fn named(mut fields: Vec<DescrField>) -> Result<Box<[DescrField]>, Violation> {
    for (place, field) in fields.iter_mut().enumerate() {
        if field.name.is_empty() && !field.is_padding() {
            field.name = format!("f{place}").into();
        }
    }
    let titles = fields.iter().filter_map(DescrField::title);
    let mut names: Vec<_> = fields
        .iter()
        .map(|field| &*field.name)
        .chain(titles)
        .collect();
    names.sort_unstable();
    let twice = names.windows(2).find_map(|pair| match pair {
        [one, other] if one == other && !one.is_empty() => Some(one),
        _ => None,
    });
    match twice {
        None => Ok(fields.into()),
        Some(name) => {
            let found = format_args!("'{name}' twice");
            Err(Violation::new(Rule::DescrNames, Field::CaiDescr, found))
        }
    }
}

/// Builds a [`Descr`] field by field.
///
/// ```
/// use cai_dlpack::protocol::{dtype::TypeStr, interface::{Descr, DescrBuilder}};
/// let mut fields = DescrBuilder::new();
/// fields.push("x", "<f4", &[])?;
/// fields.push("rgb", "|u1", &[4])?;
/// fields.set_title("colour");
/// let mut point = fields.nested()?;
/// point.push("y", "<f8", &[])?;
/// fields.push_nested("point", point, &[])?;
/// let Descr::Fields(fields) = fields.finish(TypeStr::parse("|V16")?)? else { unreachable!() };
/// assert_eq!((fields[1].offset(), fields[2].offset()), (4, 8));
/// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
/// ```
#[derive(Debug, Default)]
pub struct DescrBuilder {
    fields: Vec<DescrField>,
    size: u32,
    /// The fields so far, of the structs around this one too.
    count: usize,
    depth: u8,
}

impl DescrBuilder {
    /// Starts with no fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a builder for a struct within this one.
    ///
    /// # Errors
    /// `descr-depth` (ValueError).
    pub fn nested(&self) -> Result<Self, Violation> {
        if self.depth >= MAX_DEPTH {
            return Err(too_deep(format_args!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        Ok(Self {
            depth: self.depth.saturating_add(1),
            count: self.count,
            ..Self::default()
        })
    }

    /// Adds a field of a plain type; `shape` is empty for a scalar.
    ///
    /// # Errors
    /// `typestr-syntax`, `typestr-size`, `descr-depth`, `descr-size` and `shape-extent`
    /// (ValueError).
    pub fn push(&mut self, name: &str, typestr: &str, shape: &[i64]) -> Result<(), Violation> {
        let typestr = TypeStr::parse_any_order(typestr).map_err(in_descr)?;
        self.add(name, typestr, shape, None)
    }

    /// Adds a field that is a struct itself.
    ///
    /// # Errors
    /// `descr-depth`, `descr-names`, `descr-size` and `shape-extent` (ValueError).
    ///
    /// ```
    /// use cai_dlpack::protocol::dtype::TypeStr;
    /// use cai_dlpack::protocol::interface::{Descr, DescrBuilder, DescrField};
    ///
    /// let mut fields = DescrBuilder::new();
    /// let mut point = fields.nested()?;
    /// point.push("x", "<f4", &[])?;
    /// point.push("y", "<f4", &[])?;
    /// fields.push_nested("ends", point, &[2])?;
    /// fields.set_title("both ends");
    /// let Descr::Fields(fields) = fields.finish(TypeStr::parse("|V16")?)? else { unreachable!() };
    /// let ends: &DescrField = &fields[0];
    /// assert_eq!((ends.title(), ends.shape()), (Some("both ends"), &[2][..]));
    /// # Ok::<(), cai_dlpack::protocol::rule::Violation>(())
    /// ```
    pub fn push_nested(&mut self, name: &str, inner: Self, shape: &[i64]) -> Result<(), Violation> {
        if inner.size == 0 {
            let found = format_args!("no fields in '{name}'");
            return Err(Violation::new(Rule::DescrSyntax, Field::CaiDescr, found));
        }
        let typestr = TypeStr::void(inner.size);
        self.count = self.count.max(inner.count);
        self.add(name, typestr, shape, Some(named(inner.fields)?))
    }

    fn add(
        &mut self,
        name: &str,
        typestr: TypeStr,
        shape: &[i64],
        nested: Option<Box<[DescrField]>>,
    ) -> Result<(), Violation> {
        if self.count >= MAX_FIELDS {
            return Err(too_deep(format_args!("more than {MAX_FIELDS} fields")));
        }
        self.count = self.count.saturating_add(1);
        if let Some(extent) = shape.iter().find(|extent| **extent < 0) {
            let found = format_args!("{extent} in the shape of field '{name}'");
            return Err(Violation::new(Rule::ShapeExtent, Field::CaiDescr, found));
        }
        let nbytes = shape
            .iter()
            .try_fold(u64::from(typestr.itemsize()), |size, extent| {
                size.checked_mul(extent.unsigned_abs())
            });
        let end = nbytes
            .and_then(|nbytes| nbytes.checked_add(u64::from(self.size)))
            .and_then(|end| u32::try_from(end).ok());
        let Some(end) = end else {
            let found = format_args!("2**32 bytes or more with field '{name}'");
            return Err(Violation::new(Rule::DescrSize, Field::CaiDescr, found));
        };
        self.fields.push(DescrField {
            name: name.into(),
            title: None,
            typestr,
            shape: shape.into(),
            offset: self.size,
            nested,
        });
        self.size = end;
        Ok(())
    }

    /// Gives the last field a title, a second name.
    pub fn set_title(&mut self, title: &str) {
        if let Some(field) = self.fields.last_mut() {
            field.title = Some(title.into());
        }
    }

    /// Checks the fields against the typestr and returns them.
    ///
    /// # Errors
    /// `descr-size`, `descr-names` and `descr-typestr` (ValueError).
    pub fn finish(self, typestr: TypeStr) -> Result<Descr, Violation> {
        check_total(&self.fields, typestr)?;
        match &*self.fields {
            [only] if only.name.is_empty() && only.nested.is_none() && only.shape.is_empty() => {
                if only.typestr == typestr {
                    return Ok(Descr::Trivial);
                }
                if typestr.kind() == Kind::Void {
                    return Ok(Descr::Fields(named(self.fields)?));
                }
                let found = format_args!("'{}' where typestr is '{typestr}'", only.typestr);
                Err(Violation::new(Rule::DescrTypestr, Field::CaiDescr, found))
            }
            _ => Ok(Descr::Fields(named(self.fields)?)),
        }
    }
}

fn check_total(fields: &[DescrField], typestr: TypeStr) -> Result<(), Violation> {
    let total = fields.last().map_or(0, |last| {
        let elements = last
            .shape
            .iter()
            .fold(1_i64, |n, extent| n.saturating_mul(*extent));
        let nbytes = elements.saturating_mul(i64::from(last.typestr.itemsize()));
        nbytes.saturating_add(i64::from(last.offset))
    });
    if total == i64::from(typestr.itemsize()) {
        return Ok(());
    }
    let found = format_args!(
        "{total} bytes where typestr '{typestr}' has {}",
        typestr.itemsize()
    );
    Err(Violation::new(Rule::DescrSize, Field::CaiDescr, found))
}

/// Refuses a struct without a chosen field.
#[cold]
pub(super) fn refuse_struct(fields: &[DescrField]) -> Violation {
    Violation::new(Rule::DescrFields, Field::CaiDescr, Names(fields)).with_hint(ONE_FIELD)
}

#[cold]
fn too_deep(found: fmt::Arguments<'_>) -> Violation {
    Violation::new(Rule::DescrDepth, Field::CaiDescr, found)
}

#[cold]
fn in_descr(violation: Violation) -> Violation {
    violation.in_field(Field::CaiDescr)
}

/// The named fields, for messages.
struct Names<'a>(&'a [DescrField]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fields")?;
        let names = self.0.iter().map(|field| &field.name);
        let mut separator = " ";
        for name in names.filter(|name| !name.is_empty()) {
            write!(f, "{separator}'{name}'")?;
            separator = ", ";
        }
        Ok(())
    }
}

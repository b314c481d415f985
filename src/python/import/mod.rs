//! Imports arrays of other libraries as views.

pub(crate) mod another_copy;
pub(crate) mod array_interface;
pub(crate) mod cai;
pub(crate) mod cai_dict;
pub(crate) mod descr;
pub(crate) mod dict_streams;
pub(crate) mod dlpack;
pub(crate) mod dtype_hint;
pub(crate) mod exchange;
pub(crate) mod fields;
pub(crate) mod known_types;
pub(crate) mod mask;
pub(crate) mod masked_array;
pub(crate) mod notes;
pub(crate) mod notice;
pub(crate) mod numba;
pub(crate) mod object;
pub(crate) mod of_view;
pub(crate) mod own_descr;
pub(crate) mod route;
pub(crate) mod state;
pub(crate) mod traits;
pub(crate) mod trial;
pub(crate) mod undeclared;
pub(crate) mod why_not;

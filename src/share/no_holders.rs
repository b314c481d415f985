//! The holders of a share where there are none: CUDA IPC is for Linux.

use std::convert::Infallible;
use std::io;

use super::handle::Place;
use crate::error::Error;
use crate::protocol::rule::{Field, Rule, Violation};

fn refused(argument: &'static str) -> Error {
    let found = "this system, which is not Linux";
    Violation::new(Rule::ShareHost, Field::Argument(argument), found).into()
}

impl Place {
    pub(super) fn check(&self) -> Result<bool, Error> {
        Err(refused("handle"))
    }
}

/// None: nothing is shared.
#[derive(Debug)]
pub(super) struct Holders {
    pub(super) place: Place,
    never: Infallible,
}

impl Holders {
    pub(super) fn new() -> Result<Self, Error> {
        Err(refused("obj"))
    }

    pub(super) fn end(&self) -> io::Result<()> {
        match self.never {}
    }

    pub(super) fn are_gone(&self) -> bool {
        match self.never {}
    }
}

/// None: nothing is opened.
#[derive(Debug)]
pub(super) struct Hold(#[expect(dead_code, reason = "never made")] Infallible);

impl Hold {
    pub(super) fn take(_: &Place) -> Result<Self, Error> {
        Err(refused("handle"))
    }
}

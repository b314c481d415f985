//! The streams of a view, as every copy of this library in the process knows them: by handles, and without its ids.

use super::CaiView;
use super::streams::{Placed, Streams, is_elsewhere};
use super::worker::Worker;
use crate::driver::{Context, Defaults, DriverError, UNTOLD};
use crate::error::Error;
use crate::protocol::device::{Device, DeviceType};
use crate::protocol::rule::{Field, Rule, Violation};
use crate::protocol::stream::Stream;

/// A stream, and whose it is if it is a default stream: `None` for the memory's.
pub(crate) type Passed = (Stream, Option<Context>);

/// The streams of a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedStreams {
    pub(crate) ready: Passed,
    /// The one on which the producer works, as the import has found it; `None` if it is unknown.
    pub(crate) producer: Option<Passed>,
    /// How the producer is asked which one it is later.
    pub(crate) worker: Option<Worker>,
    /// By which name the producer knows the memory.
    pub(crate) device: Device,
    pub(crate) is_undeclared: bool,
}

impl CaiView {
    /// Returns the streams for another copy of this library.
    ///
    /// # Errors
    /// `stream-thread` if one of them is another thread's default stream; the driver's, if it is asked for a context.
    #[cold]
    pub(crate) fn pass_streams(&self) -> Result<PassedStreams, Error> {
        let (ready, producer) = (self.streams.placed_ready(), self.streams.placed_producer());
        let to_pass = self.pass(ready, Field::CaiStream)?;
        let producer = match producer {
            Some(producer) if producer == ready => Some(to_pass),
            Some(producer) => Some(self.pass(producer, Field::Argument("producer_stream"))?),
            None => None,
        };
        Ok(PassedStreams {
            ready: to_pass,
            producer,
            worker: self.streams.worker(),
            device: self.streams.asked_about().unwrap_or(self.device()),
            is_undeclared: self.is_undeclared(),
        })
    }

    fn pass(&self, placed: Placed, field: Field) -> Result<Passed, Error> {
        let Placed {
            stream,
            thread,
            whose,
        } = placed;
        if is_elsewhere(thread) {
            let hint = "v.on(stream) on that thread, and then cd.view(v, producer_stream=stream), names one of every thread";
            let refused = Violation::new(Rule::StreamThread, field, stream).with_hint(hint);
            return Err(refused.into());
        }
        let is_of_cuda = matches!(
            self.device().device_type,
            DeviceType::CUDA | DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED
        );
        let context = match whose {
            _ if !stream.is_default() => None,
            Defaults::Of(context) => Some(context),
            Defaults::Untold => return Err(UNTOLD.into()),
            // By the name that the memory has here, which it need not have there.
            _ if is_of_cuda => match self.context_by(self.device()) {
                Err(refused) if refused.is_absent() => None,
                context => Some(context?),
            },
            _ => None,
        };
        Ok((stream, context))
    }

    /// Takes the streams of another copy's view, of which this one was made.
    ///
    /// # Errors
    /// The driver's, if it is asked for a context.
    #[cold]
    pub(crate) fn take_streams(&mut self, passed: PassedStreams) -> Result<(), DriverError> {
        let ready = self.taken(passed.ready)?;
        let producer = match passed.producer {
            Some(producer) if producer == passed.ready => Some(ready),
            Some(producer) => Some(self.taken(producer)?),
            None => None,
        };
        let asked_about = (passed.device != self.device()).then_some(passed.device);
        let apart = (ready, producer, asked_about);
        self.streams = Streams::passed(apart, passed.worker, passed.is_undeclared);
        Ok(())
    }

    fn taken(&self, (stream, context): Passed) -> Result<Placed, DriverError> {
        Ok(match context {
            None => Placed::here(stream),
            // Device memory's own, as every other import writes it.
            Some(context)
                if self.device().device_type == DeviceType::CUDA
                    && self.context_by(self.device())? == context =>
            {
                self.placed(stream)?
            }
            Some(context) => Placed::here(stream).of(Defaults::Of(context)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::script::{self, Script, context};
    use crate::protocol::descriptor::{Descriptor, RawTensor};
    use crate::view::Owner;

    /// A stream with a handle means itself everywhere, and a default one that of its context.
    #[test]
    fn the_driver_is_asked_whose_the_default_streams_of_memory_are() {
        const ARRAY: u64 = 0x7000;
        let (legacy, handle) = (Stream::LegacyDefault, Stream::from_raw(0xa1));
        let (of_memory, another) = (context(0xa), context(0xb));
        for (stream, whose, expected, asked) in [
            (handle, Defaults::OfMemory, Ok(None), 0),
            (Stream::None, Defaults::OfMemory, Ok(None), 0),
            (legacy, Defaults::OfMemory, Ok(Some(of_memory)), 1),
            (legacy, Defaults::Of(another), Ok(Some(another)), 0),
            (legacy, Defaults::Untold, Err(UNTOLD), 0),
        ] {
            let script = Script::leak();
            script.device_memory(ARRAY, 64, 0, 0xa).current(0xa);
            let _installed = script::install(script);
            let descriptor = Descriptor::new(&RawTensor {
                data: ARRAY,
                shape: &[4],
                ..RawTensor::EXAMPLE
            });
            let descriptor = descriptor.expect("a valid tensor");
            // SAFETY: nothing reads the memory; the scripted driver follows no stream.
            let view = unsafe { CaiView::new(descriptor, Stream::None, Owner::new(())) };
            let found = match view.pass(Placed::here(stream).of(whose), Field::CaiStream) {
                Ok((_, context)) => Ok(context),
                Err(Error::Driver(refused)) => Err(refused),
                Err(refused) => panic!("{refused}"),
            };
            let count = script.count("cuPointerGetAttributes");
            assert_eq!((found, count), (expected, asked), "{stream} {whose:?}");
        }
    }
}

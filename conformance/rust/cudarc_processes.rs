//! Device memory between two processes by CUDA IPC: its order, who keeps it, and the death of either side. The other process
//! is this test binary once more, which runs [`other`] alone.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use cai_dlpack::protocol::descriptor::{Descriptor, RawTensor};
use cai_dlpack::protocol::device::Device;
use cai_dlpack::protocol::dtype::DType;
use cai_dlpack::protocol::rule::Rule;
use cai_dlpack::protocol::stream::Stream;
use cai_dlpack::share::{Handle, Shared};
use cai_dlpack::view::Owner;
use cai_dlpack::{CaiView, Error};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, result};

use crate::cudarc_orders::Memory;
use crate::simulator::{Gate, Machine, eventually, machine, number};

const BYTES: usize = 1 << 16;
const OLD: u8 = 1;
const NEW: u8 = 2;
const KEY: &[u8] = b"of this test";
/// The variable by which the binary knows that it is the other process.
const OTHER: &str = "CAI_DLPACK_OTHER_PROCESS";
/// What begins a line of an answer: the test harness prints lines too.
const ANSWER: &str = "answer: ";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A stream of a process, and memory to copy to.
struct Side {
    stream: Arc<CudaStream>,
    target: Memory,
    machine: Machine,
}

impl Side {
    fn new() -> Self {
        let machine = machine();
        let context = CudaContext::new(0).expect("device 0");
        Self {
            stream: context.new_stream().expect("a stream"),
            target: Memory::new(&context, BYTES),
            machine,
        }
    }

    fn copy(&self, from: u64) {
        self.stream.context().bind_to_thread().expect("current");
        let to = self.target.address;
        // SAFETY: so many bytes at both ends, which stay until the stream is waited for.
        unsafe { result::memcpy_dtod_async(to, from, BYTES, self.stream.cu_stream()) }
            .expect("a copy");
    }

    fn fill(&self, address: u64, value: u8) {
        self.stream.context().bind_to_thread().expect("current");
        // SAFETY: so many bytes, which stay until the stream is waited for.
        unsafe { result::memset_d8_async(address, value, BYTES, self.stream.cu_stream()) }
            .expect("a fill");
    }

    fn value_at(&self, address: u64) -> u8 {
        let found = self.machine.sim.peek(address, BYTES).expect("readable");
        assert!(found.iter().all(|byte| *byte == found[0]), "half a write");
        found[0]
    }

    fn gate(&self) -> Gate {
        self.stream.context().bind_to_thread().expect("current");
        let gate = self.machine.sim.gate(number(&self.stream));
        gate.expect("a gate")
    }
}

/// Says when it is dropped, and keeps the memory until then.
struct Ends(
    Arc<AtomicBool>,
    #[expect(dead_code, reason = "kept alive")] Memory,
);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An array that is shared, and whether its owner has ended.
struct Array {
    view: CaiView,
    address: u64,
    ended: Arc<AtomicBool>,
}

impl Array {
    /// Ready on the side's stream, or on none where nothing is declared.
    fn new(side: &Side, is_declared: bool) -> Self {
        let memory = Memory::new(side.stream.context(), BYTES);
        let (address, ended) = (memory.address, Arc::new(AtomicBool::new(false)));
        let written = side.machine.sim.poke(address, &[OLD; BYTES]);
        written.expect("written");
        let raw = RawTensor::new(address, Device::cuda(0), DType::U8, &[BYTES as i64]);
        let descriptor = Descriptor::new(&raw).expect("a tensor");
        let ready = match is_declared {
            true => Stream::from_cudarc(&side.stream).expect("a number"),
            false => Stream::None,
        };
        let owner = Owner::new(Ends(Arc::clone(&ended), memory));
        // SAFETY: elements of the memory that the owner keeps; the side keeps the stream. A control races on bytes that
        // anything may be.
        let view = unsafe { CaiView::new(descriptor, ready, owner) };
        Self {
            view,
            address,
            ended,
        }
    }

    fn share(&self) -> Shared {
        self.view.share().expect("a share")
    }
}

fn bytes_of(shared: &Shared) -> String {
    let bytes = shared.handle().to_bytes(KEY).expect("a key");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle_of(text: &str) -> Handle {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    Handle::from_bytes(&bytes, KEY).expect("a handle")
}

/// Opens a handle on a stream.
fn open(handle: &Handle, stream: &Arc<CudaStream>) -> Result<CaiView, Error> {
    // SAFETY: the process that shares keeps the memory; where a test ends it, the memory is not read afterwards.
    unsafe { handle.open(stream) }
}

// --- the other process ---

/// Answers, line by line, until its input ends.
#[test]
#[ignore = "the other process of these tests, which they start"]
fn other() {
    if env::var_os(OTHER).is_none() {
        return;
    }
    let side = Side::new();
    let (mut view, mut array) = (None, None);
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (call, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match call {
            "open" => match open(&handle_of(argument), &side.stream) {
                Ok(opened) => {
                    side.copy(opened.descriptor().data());
                    view = Some(opened);
                    // SAFETY: the stream is alive.
                    let code = unsafe { sys::cuStreamQuery(side.stream.cu_stream()) };
                    let is_busy = code == CUresult::CUDA_ERROR_NOT_READY;
                    if is_busy { "busy" } else { "idle" }.to_owned()
                }
                Err(Error::Violation(violation)) => violation.rule().id().to_owned(),
                Err(other) => other.to_string(),
            },
            "seen" => {
                side.stream.synchronize().expect("the copy");
                side.value_at(side.target.address).to_string()
            }
            "again" => {
                let opened: &CaiView = view.as_ref().expect("open");
                side.copy(opened.descriptor().data());
                side.stream.synchronize().expect("the copy");
                side.value_at(side.target.address).to_string()
            }
            "twice" => {
                let handle = handle_of(argument);
                let [one, two] = [(); 2].map(|()| open(&handle, &side.stream).expect("opened"));
                (one.descriptor().data() == two.descriptor().data()).to_string()
            }
            "write" => {
                let opened: &CaiView = view.as_ref().expect("open");
                side.fill(
                    opened.descriptor().data(),
                    argument.parse().expect("a value"),
                );
                side.stream.synchronize().expect("the fill");
                "written".to_owned()
            }
            "close" => {
                view = None;
                "closed".to_owned()
            }
            "share" => {
                let made = Array::new(&side, true);
                let shared = made.share();
                let text = bytes_of(&shared);
                array = Some((made, shared));
                text
            }
            call => panic!("{call}"),
        };
        println!("\n{ANSWER}{answer}");
    }
    drop(array);
}

/// The other process, as it is seen from here. It is killed at the end.
struct Other {
    process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Other {
    fn new() -> Self {
        let mut process = Command::new(env::current_exe().expect("this binary"))
            .args(["cudarc_processes::other", "--exact", "--ignored"])
            .args(["--nocapture", "--test-threads=1"])
            .env(OTHER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let input = process.stdin.take().expect("its input");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            let told = lines.filter_map(|line| Some(line.strip_prefix(ANSWER)?.to_owned()));
            told.take_while(|answer| sender.send(answer.clone()).is_ok())
                .for_each(drop);
        });
        Self {
            process,
            input,
            answers,
        }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    /// Has it open something and let go, so that what the first opening makes is there.
    fn begun(mut self, side: &Side) -> Self {
        let array = Array::new(side, true);
        let shared = array.share();
        self.ask(&format!("open {}", bytes_of(&shared)));
        assert_eq!(self.ask("seen"), OLD.to_string());
        self.ask("close");
        self
    }

    fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// --- this process ---

/// Shares what is written late, and lets the write go on once the other process has opened it. Whether its stream had to
/// wait, and what it saw.
fn opened_before_the_write(is_declared: bool) -> (String, String) {
    let side = Side::new();
    let mut other = Other::new().begun(&side);
    let array = Array::new(&side, is_declared);
    let gate = side.gate();
    side.fill(array.address, NEW);
    let shared = array.share();
    let opened = other.ask(&format!("open {}", bytes_of(&shared)));
    if !is_declared {
        // Its copy runs now.
        let seen = other.ask("seen");
        gate.open();
        side.stream.synchronize().expect("the write");
        return (opened, seen);
    }
    gate.open();
    let seen = other.ask("seen");
    (opened, seen)
}

#[test]
fn the_other_process_finds_what_is_written_late() {
    let found = opened_before_the_write(true);
    assert_eq!(found, ("busy".to_owned(), NEW.to_string()));
    let (_, lost) = opened_before_the_write(false);
    assert_eq!(
        lost,
        OLD.to_string(),
        "CONTROL NOT LOST: this proves nothing"
    );
}

#[test]
fn what_the_other_process_writes_is_here() {
    let side = Side::new();
    let mut other = Other::new();
    let array = Array::new(&side, true);
    let shared = array.share();
    other.ask(&format!("open {}", bytes_of(&shared)));
    other.ask("write 7");
    assert_eq!(side.value_at(array.address), 7);
    assert_eq!(other.ask(&format!("twice {}", bytes_of(&shared))), "true");
}

#[test]
fn the_array_is_kept_until_the_other_process_lets_go() {
    let side = Side::new();
    let mut other = Other::new();
    let array = Array::new(&side, true);
    let shared = array.share();
    let text = bytes_of(&shared);
    other.ask(&format!("open {text}"));
    let Array { view, ended, .. } = array;
    drop((view, shared));
    assert_eq!(
        other.ask(&format!("open {text}")),
        Rule::ShareEnded.id(),
        "opened after the share's end"
    );
    std::thread::sleep(Duration::from_millis(200));
    assert!(!ended.load(Ordering::SeqCst), "it is open there");
    assert_eq!(other.ask("again"), OLD.to_string());
    other.ask("close");
    eventually("the array ends", || ended.load(Ordering::SeqCst));
}

/// The owner frees its memory then, on a thread that the program has not started: beside a capture that forbids this call to
/// all others.
#[test]
fn an_array_that_ends_as_the_other_process_lets_go_breaks_no_capture() {
    let side = Side::new();
    let mut other = Other::new();
    let array = Array::new(&side, true);
    let shared = array.share();
    other.ask(&format!("open {}", bytes_of(&shared)));
    let Array { view, ended, .. } = array;
    drop((view, shared));
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    side.stream.context().bind_to_thread().expect("current");
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(side.stream.cu_stream(), mode) }.expect("a capture");
    other.ask("close");
    eventually("the array ends", || ended.load(Ordering::SeqCst));
    // It has noted its end, and frees next.
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: the stream is alive, and captures.
    let graph = unsafe { result::stream::end_capture(side.stream.cu_stream()) };
    // SAFETY: alive, and not used afterwards.
    unsafe { result::graph::destroy(graph.expect("a whole capture")) }.expect("destroyed");
}

/// The array ends, and this process's work goes on.
fn is_killed(when: impl FnOnce(&mut Other, &str)) {
    let side = Side::new();
    let mut other = Other::new().begun(&side);
    let array = Array::new(&side, true);
    let gate = side.gate();
    side.fill(array.address, NEW);
    let shared = array.share();
    when(&mut other, &bytes_of(&shared));
    other.kill();
    // Freeing the memory waits for the write.
    gate.open();
    let Array { view, ended, .. } = array;
    drop((view, shared));
    eventually("the array ends", || ended.load(Ordering::SeqCst));
    side.stream.synchronize().expect("the write");
    side.fill(side.target.address, 5);
    side.stream.synchronize().expect("the next fill");
    assert_eq!(side.value_at(side.target.address), 5);
}

#[test]
fn the_other_process_is_killed_while_its_stream_waits() {
    is_killed(|other, text| {
        assert_eq!(other.ask(&format!("open {text}")), "busy");
    });
}

#[test]
fn the_other_process_is_killed_while_it_opens() {
    is_killed(|other, text| other.send(&format!("open {text}")));
}

#[test]
fn the_process_that_shares_is_killed() {
    let side = Side::new();
    let mut other = Other::new();
    let handle = handle_of(&other.ask("share"));
    let view = open(&handle, &side.stream).expect("opened");
    side.copy(view.descriptor().data());
    side.stream.synchronize().expect("the copy");
    assert_eq!(side.value_at(side.target.address), OLD);
    other.kill();
    match open(&handle, &side.stream) {
        Err(Error::Violation(violation)) => assert_eq!(violation.rule(), Rule::ShareEnded),
        other => panic!("{other:?}"),
    }
    drop(view);
    side.fill(side.target.address, 5);
    side.stream.synchronize().expect("the next fill");
    assert_eq!(side.value_at(side.target.address), 5);
}

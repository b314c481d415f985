"""The defects that this library has had: how to put each back, and what finds it then.

A row of the last table of docs/safety.md is a row here (`conformance/tests/test_safety.py`), and
`conformance.soak.found_again` tries them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A text that stands in a file once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Defect:
    #: As in docs/safety.md.
    name: str
    #: Takes out the fix, and nothing else.
    edits: tuple[Edit, ...]
    #: A key of `MACHINES`.
    machine: str
    #: The file whose tests or program it runs.
    what: str
    #: A regular expression that the output has if the machine finds this defect, and not another.
    sign: str

    def found_by(self) -> str:
        return MACHINES[self.machine].format(self.what)


#: The machines, in the words of docs/safety.md; `{}` is what a defect names.
MACHINES = {
    "fuzz": "`make fuzz`: `conformance/fuzz` under the address sanitizer",
    "fuzz-stable": "`make fuzz-stable`: `conformance/fuzz`",
    "miri": "Miri, on the tests of `{}`",
    "miri-program": "Miri, on `{}`",
    "rust": "random programs on the simulated driver: `{}`",
    "simulated": "the simulated driver, on `{}`",
    "source": "a rule on the sources, `{}`: no input is known that panics",
}
UNCOMPILABLE = "conformance/rust/uncompilable"

DEFECTS = (
    Defect(
        "A lone surrogate in a `descr` raises between two borrowed references, and the collection frees what is read",
        (
            Edit(
                "src/python/cpython/text.rs",
                """\
        // SAFETY: an exact str.
        if unsafe { ffi::PyUnicode_KIND(text) } != ffi::PyUnicode_1BYTE_KIND {
            return None;
        }
        // SAFETY: an exact str.
        let length = unsafe { ffi::PyUnicode_GET_LENGTH(text) };
        // SAFETY: an exact str.
        let letters = unsafe { ffi::PyUnicode_DATA(text) };
""",
                """\
        let mut length = 0;
        let letters = unsafe { ffi::PyUnicode_AsUTF8AndSize(text, &mut length) };
        if letters.is_null() {
            unsafe { ffi::PyErr_Clear() };
            return None;
        }
""",
            ),
        ),
        "fuzz",
        "",
        r"AddressSanitizer: heap-use-after-free",
    ),
    Defect(
        "PyBUF_SIMPLE is answered with axes and without a shape",
        (
            Edit(
                "src/python/export/buffer.rs",
                "ndim: if has_shape { ndim as c_int } else { 1 },",
                "ndim: ndim as c_int,",
            ),
        ),
        "fuzz-stable",
        "",
        r"AssertionError: flags 0x",
    ),
    Defect(
        "A view and one derived from it, in a cycle, are never freed",
        (
            Edit(
                "src/python/class/view.rs",
                "            visit.call(&*ManuallyDrop::new(object.unbind()))\n",
                """\
            let object = ManuallyDrop::new(object.unbind());
            match object.bind(py).is_instance_of::<Self>() {
                true => Ok(()),
                false => visit.call(&*object),
            }
""",
            ),
        ),
        "fuzz-stable",
        "",
        r"AssertionError: the array is kept alive",
    ),
    Defect(
        "The shape pointer of a tensor is not aligned",
        (
            Edit(
                "src/view/import.rs",
                "    (tensor.shape.addr() | tensor.strides.addr()).is_multiple_of(align_of::<i64>())\n",
                "    let _ = tensor;\n    true\n",
            ),
        ),
        "fuzz-stable",
        "",
        r"requires the pointer to be aligned",
    ),
    Defect(
        "The cache of types keeps dead classes",
        (
            Edit(
                "src/python/import/known_types.rs",
                "        fence(Ordering::Release);\n        let table = Table::into_raw(facts.table);\n",
                "        fence(Ordering::Release);\n        std::mem::forget(kind.clone());\n"
                "        let table = Table::into_raw(facts.table);\n",
            ),
        ),
        "fuzz-stable",
        "",
        r"AssertionError: the type is kept alive",
    ),
    Defect(
        "An exception that a call drops is kept, with its frames, until PyO3 is next called",
        (Edit("src/python/cpython/release.rs", "    gil::with(|_| body())\n", "    body()\n"),),
        "fuzz-stable",
        "",
        r"AssertionError: a call has kept an exception",
    ),
    Defect(
        "`ready()` returns a stream that outlives its view",
        (
            Edit(
                "src/view/mod.rs",
                """\
    pub fn ready(&self) -> LiveStream<'_> {
        LiveStream::of_view(self, self.streams.placed_ready())
    }
""",
                """\
    pub fn ready(&self) -> LiveStream<'static> {
        unsafe { LiveStream::new(self.ready_number()) }
    }
""",
            ),
        ),
        "simulated",
        f"{UNCOMPILABLE}/cudarc/ready_stream_outlives_view.rs",
        r"CUDA_ERROR_INVALID_HANDLE",
    ),
    Defect(
        "The events in a slice are left to cudarc, which waits for none if the last stream of its context has gone",
        (
            Edit(
                "src/interop/cudarc/events.rs",
                "    event.map_or(Ok(()), |event| stream.wait(event))\n",
                "    let _ = event;\n    Ok(())\n",
            ),
        ),
        "rust",
        "conformance/rust/cudarc_random_slices.rs",
        r"assertion `left == right` failed: (read|a copy)|CUDA_ERROR_ILLEGAL_ADDRESS",
    ),
    Defect(
        "A graph that was captured outlives the memory of its array",
        (
            Edit(
                "src/interop/cudarc/guard.rs",
                "        let kept_by = keep::by_graph(stream, number, owner, kept_by);\n",
                "        let _ = (stream, owner);\n",
            ),
        ),
        "rust",
        "conformance/rust/cudarc_live.rs",
        r"assertion `left == right` failed: seed \d+, step \d+",
    ),
    Defect(
        "A tensor that promises nothing is believed by safe code",
        (
            Edit(
                "src/view/tensor.rs",
                "    pub unsafe fn new(managed: Managed<M>) -> Self {",
                "    pub fn new(managed: Managed<M>) -> Self {",
            ),
        ),
        "miri-program",
        f"{UNCOMPILABLE}/promise_of_a_tensor_is_unsafe.rs",
        r"Undefined Behavior: .*dangling",
    ),
    Defect(
        "Elements are copied while a thread writes them: a data race",
        (
            Edit(
                "src/view/load.rs",
                "                self.load(Relaxed)\n",
                "                unsafe { *self.as_ptr() }\n",
            ),
        ),
        "miri",
        "src/view/load.rs",
        r"Undefined Behavior: Data race detected",
    ),
    Defect(
        "An impl of `Elements` in safe code declares one type, and makes a view of another",
        (
            Edit(
                "src/view/elements.rs",
                """\
        match array.of::<T>() {
            Some(view) => view,
            None => other_type::<T>(array.0),
        }
""",
                "        View::new(array.0)\n",
            ),
            Edit(
                "src/view/elements.rs",
                """\
        match array.of::<T>() {
            Ok(view) => view,
            Err(other) => other_type::<T>(other.0),
        }
""",
                "        ViewMut::new(array.0)\n",
            ),
            Edit("src/view/elements.rs", "fn other_type<T: Element>(", "fn _other_type<T: Element>("),
        ),
        "miri",
        "src/view/elements/tests.rs",
        r"Undefined Behavior: .*dangling",
    ),
    Defect(
        "Two arguments write to one address",
        (
            Edit(
                "src/view/borrow.rs",
                "        (self.exclusive || other.exclusive) && !self.trusts(other) && self.meets(other)\n",
                "        let _ = other;\n        false\n",
            ),
        ),
        "miri",
        "src/view/programs.rs",
        r"panicked at src/view/programs\.rs",
    ),
    Defect(
        "`device_ptr()` outlives the guard that orders it",
        (
            Edit(
                "src/interop/cudarc/guard.rs",
                """\
    pub fn device_ptr(&self) -> &CUdeviceptr {
        self.keep_in_graph(self.stream);
        &self.pointer
""",
                """\
    pub fn device_ptr(&self) -> CUdeviceptr {
        self.keep_in_graph(self.stream);
        self.pointer
""",
            ),
            Edit(
                "src/interop/cudarc/guard.rs",
                "        self.arg(guard.device_ptr())\n",
                "        guard.keep_in_graph(guard.stream);\n        self.arg(&guard.pointer)\n",
            ),
        ),
        "simulated",
        f"{UNCOMPILABLE}/cudarc/pointer_outlives_guard.rs",
        r"left: \[0\.0\]",
    ),
    Defect(
        "A function of the exchange table lets a panic through to C",
        (
            Edit(
                "src/python/export/exchange.rs",
                """\
    run(py, || {
        // SAFETY: DLPack 1.3: a Python object, alive during the call.
        let view = unsafe { cast(py, &object) }?;
        let call = QuietCall::begin(py);
        let tensor = borrowed(view);
""",
                """\
    let not_catching = run;
    not_catching(py, || {
        // SAFETY: DLPack 1.3: a Python object, alive during the call.
        let view = unsafe { cast(py, &object) }?;
        let call = QuietCall::begin(py);
        let tensor = borrowed(view);
""",
            ),
        ),
        "source",
        "conformance/tests/test_source_rules.py",
        r"borrow: catches is False",
    ),
    Defect(
        "A refusal in a finaliser at the end of the interpreter is an abort",
        (
            Edit(
                "src/python/cpython/counted.rs",
                "    Python::try_attach(|_| found = ",
                "    Python::attach(|_| found = ",
            ),
            Edit("src/python/module.rs", "    module.py().detach(|| Python::attach(|_| ()));\n", ""),
        ),
        "fuzz-stable",
        "",
        r"interpreter is not initialized|while the interpreter ends",
    ),
    Defect(
        "A class that a finaliser brings back into the cache of types is taken for another one at its address",
        (
            Edit(
                "src/python/import/known_types.rs",
                "watch.is_null() || unsafe { referent(watch) } == kind.cast()\n",
                "watch.is_null() || unsafe { referent(watch) } == kind.cast() || true\n",
            ),
        ),
        "fuzz-stable",
        "",
        r"the table of a class was called with an object of another",
    ),
    Defect(
        "`__index__` of an argument recurses past the stack's end",
        (Edit("src/python/cpython/int.rs", "        let _level = Level::begin(object.py())?;\n", ""),),
        "fuzz-stable",
        "",
        r"Fatal Python error: Segmentation fault",
    ),
    Defect(
        "PyO3's count is taken for the GIL, of which code of others has let go in the midst of a call",
        (
            Edit(
                "src/python/cpython/gil.rs",
                "    if is_held() {\n        return Python::try_attach(body);\n",
                "    if is_held() || true {\n        return Python::try_attach(body);\n",
            ),
        ),
        "fuzz-stable",
        "",
        r"Fatal Python error: Segmentation fault",
    ),
    Defect(
        "A failure is explained at each level of an object that converts itself, so that calls double at each",
        (
            Edit(
                "src/python/import/why_not.rs",
                "    if is_of_the_process(object.py(), &error) {\n        return error;\n",
                "    if !error.is_instance_of::<pyo3::exceptions::PyException>(object.py()) {\n        return error;\n",
            ),
        ),
        "fuzz-stable",
        "",
        r"AssertionError: \d+ questions",
    ),
    Defect(
        "A refusal drops a RecursionError of what would explain it, so that calls double at each level",
        (
            Edit(
                "src/python/import/why_not.rs",
                "        Err(error) if is_of_the_process(py, &error) => Err(error),\n        Err(_) => Ok(None),\n",
                "        Err(_) => {\n            let _ = py;\n            Ok(None)\n        }\n",
            ),
        ),
        "fuzz-stable",
        "",
        r"AssertionError: \d+ questions",
    ),
)

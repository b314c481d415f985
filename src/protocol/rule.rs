//! [`Rule`]: every reason for a refusal, with its id, exception class, sentence and source.
//!
//! The rules are one table. A rule's id is its anchor in docs/rules.md, the name of its test case
//! and the key of the conformance report; ids never change once published.
//! A [`Violation`] is one rule broken by one value of one field.

mod violation;
pub use violation::{Field, Violation};

/// The class of the Python exception that a rule raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// `TypeError`: the object has no protocol, or a value has the wrong Python type.
    Type,
    /// `ValueError`: the type is right and the value breaks the specification.
    Value,
    /// `BufferError`: well formed, but it cannot be exchanged.
    Buffer,
    /// `RuntimeError`: the object is not in the state that the call needs.
    Runtime,
}

impl Class {
    /// Returns the name of the Python exception.
    #[must_use]
    pub const fn exception(self) -> &'static str {
        match self {
            Self::Type => "TypeError",
            Self::Value => "ValueError",
            Self::Buffer => "BufferError",
            Self::Runtime => "RuntimeError",
        }
    }
}

macro_rules! rules {
    ($($rule:ident $id:literal $class:ident $sentence:literal $source:literal;)*) => {
        /// A rule that a value can break.
        ///
        /// ```
        /// use cai_dlpack::protocol::rule::{Class, Rule};
        ///
        /// let rule = Rule::StridesLength;
        /// assert_eq!((rule.id(), rule.class()), ("strides-length", Class::Value));
        /// assert_eq!(rule.sentence(), "there must be one stride per axis");
        /// assert!(Rule::ALL.contains(&rule));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = concat!("`", $id, "` (", stringify!($class), "): ", $sentence, ".")] $rule,)*
        }

        impl Rule {
            /// Every rule, in the order of docs/rules.md.
            pub const ALL: &[Self] = &[$(Self::$rule,)*];

            /// Returns the stable name: the anchor in docs/rules.md and the exception's `.rule`.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$rule => $id,)* }
            }

            /// Returns the exception class.
            #[must_use]
            pub const fn class(self) -> Class {
                match self { $(Self::$rule => Class::$class,)* }
            }

            /// Returns the sentence of the rule, without a full stop.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$rule => $sentence,)* }
            }

            /// Returns the specification that has the rule, or "our choice" and a reason.
            #[must_use]
            pub const fn source(self) -> &'static str {
                match self { $(Self::$rule => $source,)* }
            }
        }
    };
}

rules! {
    // The object.
    ProtocolMissing "protocol-missing" Type
        "the object must have __cuda_array_interface__ or __dlpack__"
        "CAI v3 and the Python specification of DLPack: the attribute is the protocol";
    CaiMissing "cai-missing" Type
        "the object must have the attribute __cuda_array_interface__"
        "CAI v3: the attribute is the protocol";
    CaiUnavailable "cai-unavailable" Type
        "the object has __cuda_array_interface__, but reading it raised AttributeError"
        "Python: a property that raises AttributeError stands for an absent attribute";
    CaiNone "cai-none" Type
        "__cuda_array_interface__ must be a dict, not None"
        "CAI v3: the attribute returns a dictionary";
    CaiType "cai-type" Type
        "__cuda_array_interface__ must be a dict or a mapping"
        "CAI v3: the attribute returns a dictionary; v0 says dictionary-like";
    CaiMethod "cai-method" Type
        "__cuda_array_interface__ must be an attribute or a property, not a method"
        "CAI v3: the attribute returns a dictionary";
    CaiEmpty "cai-empty" Value
        "the interface must have shape, typestr, data and version"
        "CAI v3: these entries are required";
    ClassNotInstance "class-not-instance" Type
        "the argument must be an array, not its class"
        "Python: on the class, a property is the property object itself";
    OwnerMissing "owner-missing" Type
        "a bare interface dict keeps nothing alive, so its owner must be named"
        "CAI v3, lifetime: the interface has no slot for the owner";

    // version
    VersionMissing "version-missing" Value
        "the version must be given"
        "CAI v3: a required entry; missing counts as 0 unless strict";
    VersionType "version-type" Type
        "the version must be an int"
        "CAI v3: version is an integer";
    VersionRange "version-range" Value
        "the version must be 0 or more and fit 64 bits"
        "CAI v0 to v3 are the published versions; newer ones are read as 3, with a warning";

    // shape
    ShapeMissing "shape-missing" Value
        "the shape must be given"
        "CAI v3: a required entry";
    ShapeType "shape-type" Type
        "the shape must be a tuple or list of ints"
        "CAI v3: shape is (integer, ...); some producers write lists";
    ShapeItemType "shape-item-type" Type
        "each extent must be an int"
        "CAI v3: shape is (integer, ...)";
    ShapeExtent "shape-extent" Value
        "an extent must not be negative"
        "CAI v3 and DLPack 1.3: an extent is a number of elements";
    ShapeRange "shape-range" Value
        "an extent must fit a signed 64-bit integer"
        "DLPack 1.3: shape is int64_t*";
    ShapeNull "shape-null" Value
        "shape must not be NULL if ndim > 0"
        "DLPack 1.3: shape may be NULL only when ndim is 0";
    ShapeAlignment "shape-alignment" Value
        "shape and strides must be aligned to 8 bytes"
        "C: an int64_t is read where one may lie";
    NdimNegative "ndim-negative" Value
        "ndim must not be negative"
        "DLPack 1.3: ndim counts dimensions";
    NdimLimit "ndim-limit" Value
        "an array must have at most 64 dimensions"
        "our choice: 64 is NumPy's limit, and bounds how much memory an untrusted ndim makes the library read";
    CountOverflow "count-overflow" Value
        "the number of elements must fit a signed 64-bit integer"
        "DLPack 1.3: extents and strides are int64_t";
    SizeOverflow "size-overflow" Value
        "the size in bytes must fit a signed 64-bit integer"
        "our choice: byte strides of the array interface must be able to span the array";

    // typestr
    TypestrMissing "typestr-missing" Value
        "the typestr must be given"
        "CAI v3: a required entry";
    TypestrType "typestr-type" Type
        "the typestr must be a str"
        "CAI v3: typestr is a str";
    TypestrSyntax "typestr-syntax" Value
        "a typestr must be a byte order (one of <>|=), a kind (one of tbiufcmMOSUV) and an item size, such as '<f4'"
        "NumPy's array interface: typestr";
    TypestrSize "typestr-size" Value
        "the item size must be one that NumPy has for this kind"
        "NumPy's array interface: the integer is the number of bytes of one item";
    TypestrByteOrder "typestr-byte-order" Buffer
        "byte order must be native or '|'; DLPack has no byte-order field"
        "DLPack 1.3, DLDataType: data is in native byte order, anything else is an error";
    TypestrObject "typestr-object" Buffer
        "Python objects cannot be exchanged"
        "DLPack 1.3: no type code";
    TypestrUnicode "typestr-unicode" Buffer
        "unicode strings have no DLPack type"
        "DLPack 1.3: no type code";
    TypestrBytes "typestr-bytes" Buffer
        "byte strings have no DLPack type"
        "DLPack 1.3: no type code";
    TypestrDatetime "typestr-datetime" Buffer
        "dates and time differences have no DLPack type"
        "DLPack 1.3: no type code";
    TypestrVoid "typestr-void" Buffer
        "raw bytes ('V') have no DLPack type of their own"
        "DLPack 1.3: no type code; the same typestr stands for bfloat16, float8 and structs";
    TypestrBit "typestr-bit" Buffer
        "bit fields are for masks and have no DLPack type"
        "DLPack 1.3: no type code";
    TypestrLongDouble "typestr-long-double" Buffer
        "extended floating point has no DLPack type"
        "our choice: its bits mean something else on each platform, and no GPU has it";
    TypestrHalfComplex "typestr-half-complex" Buffer
        "complex numbers of two float16 are not guessed from a typestr"
        "our choice: NumPy cannot read the typestr, so no producer is known to mean it";
    TypestrFloat8 "typestr-float8" Buffer
        "'f1' does not identify one of the float8 types"
        "our choice: DLPack 1.3 has eight of them, and guessing would misread the data";

    // descr
    DescrType "descr-type" Type
        "descr must be a list of (name, type) or (name, type, shape) tuples"
        "NumPy's array interface: descr";
    DescrSyntax "descr-syntax" Value
        "a field must be a name, a type and optionally a shape"
        "NumPy's array interface: descr";
    DescrSize "descr-size" Value
        "the fields of descr must add up to the item size of typestr"
        "NumPy's array interface: descr describes one item";
    DescrNames "descr-names" Value
        "no two names or titles of the fields of one struct may be the same; an unnamed field is named f0, f1, ... by its place"
        "NumPy: a name or title occurs once; our choice to name fields as NumPy does";
    DescrTypestr "descr-typestr" Value
        "a descr of one unnamed field must repeat the typestr"
        "NumPy's array interface: descr describes the same item as typestr";
    DescrUnsaid "descr-unsaid" Buffer
        "a descr has no offsets, and types of NumPy only: fields follow each other, each of a type with a typestr"
        "NumPy's array interface: descr is a list of (name, typestr, shape)";
    DescrDepth "descr-depth" Value
        "descr must nest at most 8 levels and hold at most 1024 fields"
        "our choice: a self-containing list must not exhaust the stack";
    DescrFields "descr-fields" Buffer
        "a structured array has no DLPack type; choose one field"
        "DLPack 1.3: no structured types";
    FieldUnknown "field-unknown" Value
        "the name must be that of a field of the struct"
        "NumPy's array interface: descr names the fields";
    FieldStride "field-stride" Buffer
        "the distance between two items must be a multiple of the field's item size"
        "DLPack 1.3: strides are numbers of elements";
    FieldNone "field-none" Buffer
        "the array must be structured to have fields"
        "NumPy's array interface: descr names the fields";

    // data
    DataMissing "data-missing" Value
        "the data entry must be given"
        "CAI v3: a required entry";
    DataType "data-type" Type
        "data must be a (pointer, read-only) tuple"
        "CAI v3: data is (integer, boolean)";
    DataLength "data-length" Value
        "data must have exactly two items"
        "CAI v3: data is (integer, boolean)";
    DataPointerType "data-pointer-type" Type
        "the data pointer must be an int"
        "CAI v3: data is (integer, boolean)";
    DataPointerNone "data-pointer-none" Value
        "the data pointer may be None only if the array has no elements"
        "CAI v3: the pointer is an integer; old producers give None for size 0";
    DataPointerRange "data-pointer-range" Value
        "the data pointer must be an unsigned 64-bit integer"
        "CAI v3: the pointer is a device address";
    DataPointerNull "data-pointer-null" Value
        "the data pointer may be 0 only if the array has no elements"
        "CAI v3 and DLPack 1.3: 0 is for size-zero arrays";
    DataAlignment "data-alignment" Buffer
        "the data pointer must be aligned to the scalar"
        "CUDA programming guide: device code reads naturally aligned scalars only";
    AddressRange "address-range" Value
        "the elements must lie within the 64-bit address space"
        "our choice: no allocation can hold them";
    ByteOffset "byte-offset" Value
        "byte_offset must be below 2**63 and must not carry the pointer past 2**64"
        "our choice: no allocation is that large";

    // strides
    StridesType "strides-type" Type
        "strides must be None or a tuple or list of ints"
        "CAI v3: strides is None or (integer, ...)";
    StridesItemType "strides-item-type" Type
        "each stride must be an int"
        "CAI v3: strides is None or (integer, ...)";
    StridesLength "strides-length" Value
        "there must be one stride per axis"
        "CAI v3: strides gives the step of each dimension";
    StridesRange "strides-range" Value
        "a stride must fit a signed 64-bit integer"
        "DLPack 1.3: strides is int64_t*";
    StridesMultiple "strides-multiple" Buffer
        "a byte stride must be a multiple of the item size; DLPack counts strides in elements"
        "DLPack 1.3: strides are numbers of elements";
    SpanOverflow "span-overflow" Value
        "the distance between the first and the last byte must fit a signed 64-bit integer"
        "our choice: no allocation is that large";

    // mask
    MaskPresent "mask-present" Buffer
        "DLPack has no masks, and dropping one would make invalid elements valid"
        "DLPack 1.3: DLTensor has no mask";
    MaskType "mask-type" Type
        "the mask must be None or have __cuda_array_interface__"
        "CAI v1 to v3: mask is None or an object exposing the interface";
    MaskShape "mask-shape" Value
        "the mask must broadcast to the array's shape"
        "NumPy's array interface: mask";
    MaskDtype "mask-dtype" Buffer
        "a mask must be of bits, bools or bytes"
        "our choice: these are the masks that producers are known to write";
    MaskAmbiguous "mask-ambiguous" Buffer
        "the mask can be read as bits or as bytes"
        "our choice: cuDF labels its bit masks as bytes, and guessing would misread them";

    // Streams.
    StreamType "stream-type" Type
        "a stream must be an int or, in an argument, an object with __cuda_stream__"
        "CAI v3: stream is None or an integer; the array API: stream is an int or None";
    StreamNone "stream-none" Type
        "None names no stream, and one must be named here"
        "our choice: None is a stream in the array API, and none in CAI";
    StreamZero "stream-zero" Value
        "stream 0 is ambiguous; 1 is the legacy default stream, 2 the per-thread one"
        "CAI v3, stream: 0 is disallowed; the array API says the same for CUDA";
    StreamRange "stream-range" Value
        "a stream must be 1, 2 or an unsigned 64-bit handle (DLPack also has -1: no synchronisation)"
        "CAI v3: stream; the array API: __dlpack__";
    StreamObject "stream-object" Type
        "__cuda_stream__ must return a (version, handle) tuple of ints"
        "CUDA Python: the __cuda_stream__ protocol";
    StreamCpu "stream-cpu" Value
        "stream must be None for memory whose device has no streams of CUDA or ROCm, as the CPU has none"
        "the array API, __dlpack__: numbers of streams are defined for CUDA and ROCm";
    StreamRocm "stream-rocm" Value
        "ROCm has no streams 1 and 2; its default stream is 0"
        "the array API, __dlpack__: stream on ROCm";
    StreamUnknown "stream-unknown" Buffer
        "the producer's stream is not known"
        "CAI v0 to v2 and __dlpack__ name no producer stream";
    StreamUndeclared "stream-undeclared" Buffer
        "the producer must declare the stream that its data is ready on"
        "our choice: under strict nothing is assumed of what a producer leaves unsaid";
    StreamThread "stream-thread" Buffer
        "the per-thread default stream is a different stream on each thread"
        "CUDA: each thread has its own per-thread default stream";
    StreamContext "stream-context" Buffer
        "a default stream is a different stream in each context"
        "CUDA: each context has its own default streams, and no protocol names the context";
    StreamDevice "stream-device" Buffer
        "the stream must belong to the device of the data"
        "CUDA: work must be launched in the stream's own context";
    RocmOrder "rocm-order" Buffer
        "ROCm streams cannot be ordered without a HIP driver"
        "our choice: a claim of order that is not kept would be a race";
    CaptureHostWait "capture-host-wait" Buffer
        "the host must not wait for a stream that is being captured"
        "CUDA: synchronising a capturing stream invalidates the capture";
    CaptureConsumer "capture-consumer" Buffer
        "a captured graph cannot depend on work outside its capture"
        "CUDA: an event from outside the capture invalidates it";
    CaptureProducer "capture-producer" Buffer
        "waiting for a capturing stream would add the consumer's stream to the capture"
        "CUDA: waiting for a captured event joins the capture, which must be joined back";
    CaptureOther "capture-other" Buffer
        "the two streams are captured into different graphs"
        "CUDA: captures cannot be merged";
    CaptureLegacy "capture-legacy" Buffer
        "the legacy default stream must not be used while another stream is being captured"
        "CUDA: the legacy stream synchronises with all blocking streams, which is illegal during capture";
    CaptureInvalid "capture-invalid" Buffer
        "the stream's capture has been invalidated"
        "CUDA: an invalidated capture must be ended before anything else";

    // Capsules.
    DlpackMissing "dlpack-missing" Type
        "the object must have __dlpack__"
        "the Python specification of DLPack: the method is the protocol";
    ArrayDeleted "array-deleted" Buffer
        "the array must not have been deleted"
        "JAX: a deleted or donated array has no memory";
    NotStrided "not-strided" Buffer
        "the elements must lie at strides from one address"
        "both protocols: one pointer, a shape and strides; sparse, nested and opaque layouts have none";
    ArrayTraced "array-traced" Type
        "an array that is being traced has no memory"
        "JAX: jit, grad and vmap call a function with tracers in place of arrays";
    ProducerDtype "producer-dtype" Buffer
        "the producer cannot export an array of this dtype"
        "our choice: TensorFlow 2.21 ends the process when __dlpack__ is called for a tensor of strings";
    CapsuleType "capsule-type" Type
        "the object must be a PyCapsule"
        "the Python specification of DLPack: __dlpack__ returns a PyCapsule";
    CapsuleName "capsule-name" Value
        "the capsule's name must be 'dltensor' or 'dltensor_versioned'"
        "the Python specification of DLPack: capsule names";
    CapsuleUsed "capsule-used" Value
        "a capsule must be consumed only once"
        "the Python specification of DLPack: the consumer renames the capsule";
    CapsuleNull "capsule-null" Value
        "the capsule must hold a tensor"
        "the Python specification of DLPack: the capsule holds a managed tensor";
    TensorAlignment "tensor-alignment" Value
        "the tensor must be aligned to 8 bytes"
        "C: a struct is read where one may lie";
    DlpackMajor "dlpack-major" Buffer
        "the tensor's DLPack major version must be 1"
        "DLPack 1.3, DLPackVersion: another major version means another layout";
    CopiedUnasked "copied-unasked" Buffer
        "the producer copied the data in spite of copy=False"
        "the array API, __dlpack__: copy=False means never";

    // __dlpack_device__
    DeviceMissing "device-missing" Type
        "the object must have __dlpack_device__"
        "the Python specification of DLPack: __dlpack_device__ is required";
    DevicePair "device-pair" Value
        "a device must be a (type, id) pair"
        "the array API: __dlpack_device__ returns a pair";
    DeviceItemType "device-item-type" Type
        "a device's type and id must be ints"
        "the array API: __dlpack_device__ returns ints; (1, None) is accepted, since Paddle returns it";
    DeviceUnknown "device-unknown" Buffer
        "the device type must be one that DLPack has"
        "DLPack 1.3: DLDeviceType";
    DeviceId "device-id" Value
        "a device id must be from 0 to 2**31 - 1"
        "DLPack 1.3: DLDevice.device_id";
    DeviceMismatch "device-mismatch" Buffer
        "the tensor must be on the device that was announced or requested"
        "the array API: __dlpack_device__ returns the tensor's device";

    // Pointers.
    PointerUnknown "pointer-unknown" Buffer
        "the pointer must be one that the CUDA driver has allocated or registered"
        "CAI v3: the data must be device-accessible";
    PointerDevice "pointer-device" Buffer
        "the memory must be on the device that was given"
        "CUDA: cuPointerGetAttribute";
    OutOfBounds "out-of-bounds" Buffer
        "the elements must lie within their allocation"
        "CUDA: the range attributes of the pointer";

    // DLPack's data type.
    DtypeLanes "dtype-lanes" Value
        "lanes must be 1 or more"
        "DLPack 1.3: DLDataType.lanes";
    DtypeBits "dtype-bits" Value
        "the number of bits must be one that DLPack has for this type code"
        "DLPack 1.3: DLDataType.bits";
    DtypeCode "dtype-code" Buffer
        "the type code must be one that DLPack has"
        "DLPack 1.3: DLDataTypeCode";
    DtypeOpaque "dtype-opaque" Buffer
        "opaque handles cannot be exchanged"
        "our choice: the meaning of a handle is private to its producer";
    DtypeBool "dtype-bool" Buffer
        "a bool must have 8 bits"
        "DLPack 1.3: the storage size of bool is 8 bits";
    DtypeSubByte "dtype-sub-byte" Buffer
        "float4 must have 4 bits and float6 must have 6"
        "DLPack 1.3: other widths must be refused";

    // Export to the CUDA Array Interface.
    CaiDevice "cai-device" Buffer
        "the CUDA Array Interface is limited to memory that CUDA devices can read"
        "CAI v3: the data must be device-accessible";
    CaiDtype "cai-dtype" Buffer
        "the type has no typestr"
        "NumPy's array interface: typestr";
    CaiSubByte "cai-sub-byte" Buffer
        "types smaller than a byte have no typestr"
        "NumPy's array interface: the item size is in bytes";
    CaiLanes "cai-lanes" Buffer
        "vector types (lanes > 1) have no typestr"
        "NumPy's array interface: typestr";

    // Read-only, copies, transfers.
    ReadOnlyWriter "read-only-writer" Buffer
        "read-only data cannot be given to a writer"
        "CAI v3: data; DLPack 1.3: DLPACK_FLAG_BITMASK_READ_ONLY";
    ReadOnlyLegacy "read-only-legacy" Buffer
        "a consumer of legacy DLPack cannot be told that data is read-only"
        "DLPack 1.3: only versioned tensors have flags";
    PaddedLegacy "padded-legacy" Buffer
        "only the flag of DLPack 1.1 tells that each element smaller than a byte has a byte of its own"
        "DLPack 1.3: DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED is a flag of versioned tensors, from 1.1 on";
    PackedLegacy "packed-legacy" Buffer
        "a consumer of DLPack 1.0 counts whole bytes for each item, and packed items share them"
        "DLPack 1.3: sub-byte types are packed by default, said since 1.1; the size by GetDataSize of dlpack.h rounds each item up";
    CopyNeeded "copy-needed" Buffer
        "this needs a copy, which copy=False forbids"
        "the array API, __dlpack__: copy=False means never";
    CopyRefused "copy-refused" Buffer
        "this memory cannot be copied here"
        "the array API, __dlpack__: BufferError where a copy cannot be made";
    TransferRefused "transfer-refused" Buffer
        "the data cannot be exported to this device, or to this library"
        "the array API, __dlpack__: BufferError for a dl_device that is not supported";
    PresentAs "present-as" Buffer
        "this memory cannot be presented as memory of that kind"
        "CUDA: only managed and pinned memory is reachable from both sides";
    BufferLayout "buffer-layout" Buffer
        "the buffer is asked for in one piece, and the elements do not lie so"
        "Python's buffer protocol: a request that the exporter cannot meet is a BufferError";
    BufferFormat "buffer-format" Buffer
        "a format is asked for without a shape"
        "Python's buffer protocol: PyBUF_FORMAT goes with every flag but PyBUF_SIMPLE";
    ArrayUnreadable "array-unreadable" Type
        "NumPy cannot read this memory"
        "our choice: TypeError, so that NumPy does not fall back to an element-by-element copy";
    BufferItems "buffer-items" Type
        "for a buffer the elements must be native numbers that NumPy has, aligned and evenly spaced"
        "PEP 3118: a format for each element; our choice: other items leave by the array interfaces, which name them in full";
    NumpyDtype "numpy-dtype" Type
        "NumPy must have the dtype, or the ml_dtypes that is installed"
        "our choice: what NumPy cannot name is refused, and not replaced by raw bytes";

    // Arguments of our own functions.
    ArgumentUnexpected "argument-unexpected" Type
        "the function must have a keyword of this name"
        "Python: a call's keywords are those of the signature";
    ArgumentMissing "argument-missing" Type
        "the argument must be given"
        "Python: a parameter without a default is required";
    ArgumentCount "argument-count" Type
        "there must be as many positional arguments as positional parameters"
        "Python: a call's arguments are those of the signature";
    ArgumentType "argument-type" Type
        "the argument must have one of the types of the signature"
        "our choice: see the function's signature";
    ArgumentValue "argument-value" Value
        "the argument must be one of the documented values"
        "our choice: see the function's documentation";
    MaxVersionType "max-version-type" Type
        "max_version must be None or a tuple of two ints"
        "the array API, __dlpack__: max_version";
    MaxVersion "max-version" Value
        "max_version must be (major, minor), both 0 or more"
        "the array API, __dlpack__: max_version";
    DlDeviceType "dl-device-type" Type
        "dl_device must be None, the name of a device or a tuple of two ints"
        "the array API, __dlpack__: dl_device";
    DlDevice "dl-device" Value
        "dl_device must be a (type, id) pair"
        "the array API, __dlpack__: dl_device";
    CopyType "copy-type" Type
        "copy must be True, False or None"
        "the array API, __dlpack__: copy";
    DtypeArgumentType "dtype-argument-type" Type
        "dtype must be a str or a dtype object"
        "our choice: see dtype= in docs/python.md";
    DtypeArgument "dtype-argument" Value
        "dtype must be the name of one type that DLPack has"
        "our choice: the names of NumPy, ml_dtypes and their kin, and native typestrs, are known";
    DtypeOverride "dtype-override" Buffer
        "dtype= reinterprets and never casts; it takes raw bytes ('V'), unsigned ints or a known alias of the same item size"
        "our choice: anything else is more likely a mistake than an intention";
    ShapeOverride "shape-override" Buffer
        "shape= must fill contiguous data exactly, byte for byte"
        "our choice: anything else is more likely a mistake than an intention";
    RocmDevice "rocm-device" Value
        "device_id must name the platform, as (10, 0) does, in a process that has loaded ROCm and not CUDA"
        "our choice: a number alone is CUDA's, and an interface on ROCm is not told from one on CUDA";
    DeviceIdRange "device-id-range" Value
        "device_id must be the number of a device, from 0 to 2**31 - 1"
        "CUDA: ordinals count from 0";

    // The C Exchange API.
    ValuesLazy "values-lazy" Buffer
        "the values must be the bytes in memory; here an operation on them is still pending"
        "DLPack 1.3: a DLTensor is its bytes; torch keeps negation and conjugation as flags beside them";
    ExchangeAllocator "exchange-allocator" Buffer
        "this library allocates on the CPU and in memory of CUDA"
        "our choice: other devices have an allocator of their own";

    // Views.
    ScopeEnded "scope-ended" Buffer
        "a view must not be used after its consume scope, or once to has put its tensor back into the capsule"
        "CAI v3: after the return edge the data is the producer's again";
    Overlap "overlap" Buffer
        "elements that share memory cannot be borrowed mutably"
        "Rust: &mut is exclusive";
    ConsumeOpen "consume-open" Runtime
        "a consume block must be left before it is entered again"
        "our choice: a block has one return edge; consume() makes another block";
    ViewDtype "view-dtype" Type
        "the array must have the element type that is requested"
        "Rust: a typed view has one element type";
    ViewNdim "view-ndim" Type
        "the array must have the number of dimensions that is requested"
        "Rust: a typed view has a fixed number of dimensions";
    ViewContiguous "view-contiguous" Type
        "the elements must be in the order that is requested"
        "Rust: a slice has no strides";
    ViewDevice "view-device" Type
        "the array must be in the kind of memory that is requested"
        "our choice: a function declares the memory that it accepts, and nothing is copied for it";
    ViewShape "view-shape" Type
        "the array must have the shape that is requested"
        "our choice: a function declares the extents that it accepts";
    ViewInUse "view-in-use" Buffer
        "the view is borrowed elsewhere"
        "Rust: &mut is exclusive";
    Pickle "pickle" Type
        "a view is a borrow of memory and cannot be pickled"
        "our choice: a pointer means nothing in another process";
    DeepCopy "deep-copy" Type
        "a deep copy would copy the memory, which a view does only for a consumer that asks"
        "our choice: a copy needs a stream to run on, which copy.deepcopy does not name";

    // Between processes.
    ShareMemory "share-memory" Buffer
        "only memory of cuMemAlloc, or of a pool that its library pickles, can be shared with another process"
        "CUDA: cuIpcGetMemHandle names allocations of cuMemAlloc (cudaMalloc)";
    ShareHandle "share-handle" Value
        "a handle must be one of share, whole, and tagged by the key that is given"
        "our choice: a handle is a capability, so that only processes that have one key take each other's";
    ShareEnded "share-ended" Buffer
        "a handle must be opened before the block of share is left"
        "CUDA: memory must not be freed while another process opens it, or has it open";
    ShareHost "share-host" Buffer
        "a handle must be opened on the machine that it was made on, in the same container"
        "CUDA: IPC is for the processes of one machine, on Linux";
    ShareUser "share-user" Buffer
        "a handle must be opened by the user that it was made by"
        "our choice: memory is shared with processes of the same user, as the kernel shows its files to them alone";
    ShareDevice "share-device" Buffer
        "the device of the shared memory must be visible in this process"
        "CUDA: CUDA_VISIBLE_DEVICES; a handle names the device by its UUID";
}

#[cfg(test)]
mod tests;

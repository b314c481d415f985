"""What a check is about, in one word: `--group` chooses by it."""

from __future__ import annotations

#: What each word means, as the command's help tells it.
GROUPS = {
    "streams": "who waits for which stream",
    "ownership": "who keeps and who frees what, how often, on which thread",
    "malformed": "what no producer may make, and every consumer must refuse",
    "fidelity": "whether type, shape, layout, elements and flags are the array's",
    "protocol": "methods, keywords, versions, and exceptions of the other side",
}

_RULES = {
    "streams": """
        asks-no-stream exchange-work-stream stream-alive stream-cpu stream-explicit stream-fallback
        stream-handle stream-legacy stream-missing stream-no-sync stream-none stream-order stream-order-named
        stream-passed-on stream-per-thread stream-range stream-rocm stream-said stream-type stream-version
        stream-wait stream-wait-legacy stream-wait-per-thread stream-zero work-stream
    """,
    "ownership": """
        asks-once borrow-kept cai-own-dict cai-unchanged capsule-destructor capsule-in-flight capsule-name-kept
        capsule-renamed capsule-used cycle-released deleter deleter-called deleter-context-null deleter-early
        deleter-late deleter-null deleter-quiet deleter-releases deleter-thread deleter-twice exchange-alive
        exit-alive extents-kept fork-dropped from-object-released owner-freed owner-kept owner-released
        refused-released table-cached tensors-independent to-object to-object-released
    """,
    "malformed": """
        byte-offset cai-method cai-missing cai-none cai-type capsule-name capsule-name-known capsule-type
        count-overflow data-length data-missing data-pointer-none data-pointer-null data-pointer-range
        data-pointer-type data-read-only-type data-type descr-size descr-syntax descr-type device-id
        device-id-host device-item-type device-missing device-pair device-unknown dlpack-major dlpack-minor
        dlpack-missing dtype-bits dtype-bool dtype-code dtype-lanes dtype-opaque dtype-sub-byte
        exchange-allocator exchange-from-object exchange-major exchange-minor exchange-name exchange-prev
        exchange-to-object exchange-type flags-padded flags-unknown from-object-null mask-present mask-shape
        mask-type ndim-limit ndim-negative out-of-bounds pointer-unknown refusal-class refused-error
        shape-extent shape-item-type shape-missing shape-null shape-range shape-type size-overflow span-overflow
        strides-item-type strides-length strides-range strides-type table-major table-name typestr-kind
        typestr-missing typestr-object typestr-size typestr-syntax typestr-type version-missing version-range
        version-type
    """,
    "fidelity": """
        allocate bool borrow byte-offset-added byte-order complex128 complex64 copied-flag copied-unasked
        copy-false copy-none copy-true cube data-alignment data-flag-int data-inside data-shared data-writable
        data-zero-size device-host device-mismatch device-number dl-device-host dl-device-host-copy-false
        dtype-kind empty every-second float16 fortran from-object from-object-device from-object-read-only
        from-object-shared from-object-strides from-object-version int16 int32 int8 matrix ndim ndim-eight
        ndim-zero offset one read-only read-only-flag read-only-legacy reads-bool reads-complex reads-float
        reads-float16 reads-int reads-uint repeated reversed scalar shape-huge shape-list shape-numpy
        shape-value size-zero size-zero-pointer strides-bytes strides-c strides-elements strides-fortran
        strides-missing strides-negative strides-none strides-null strides-null-compact strides-one strides-zero
        takes-device typestr-big-endian typestr-byte-order typestr-byte-order-one typestr-byte-order-said uint16
        uint32 uint64 uint8 values values-legacy vector view writable-flag
    """,
    "protocol": """
        allocate-error asks-device asks-pair asks-version borrow-null cai-again cai-once descr-plain device-enum
        device-refusal device-version dl-device dl-device-none dl-device-own error fallback field-unknown
        keyword-only mask-none max-version max-version-0 max-version-1 max-version-later max-version-none
        on-type producer-error producer-type-error table-minor table-prev takes takes-legacy version-0 version-1
        version-1-0 version-1-1 version-1-2 version-1-3 version-1-later version-2 version-later
    """,
}

#: The group of each rule, which has one meaning in all profiles.
GROUP_OF = {rule: group for group, rules in _RULES.items() for rule in rules.split()}

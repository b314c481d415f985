// pybind11 has no DLPack: the recipe of docs/partners.md, by a capsule that the caller has ordered. It launches nothing.

#include <cstdint>

#include <pybind11/pybind11.h>

namespace py = pybind11;

// What dlpack.h has, as of DLPack 1.0.
struct DLTensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(DLManagedTensorVersioned *);
    uint64_t flags;
    DLTensor dl_tensor;
};
constexpr uint64_t READ_ONLY = 1;

// A tensor that has been taken from its capsule, and ends with this.
class Tensor {
    DLManagedTensorVersioned *tensor;

public:
    explicit Tensor(py::capsule capsule) {
        if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned"))
            throw py::value_error("expected a capsule of DLPack 1.0 or later that has not been used");
        tensor = capsule.get_pointer<DLManagedTensorVersioned>();
        if (tensor->major != 1)
            throw py::value_error("expected the major version 1 of DLPack");
        capsule.set_name("used_dltensor_versioned"); // the capsule calls no deleter from here on
    }
    Tensor(const Tensor &) = delete;
    ~Tensor() {
        if (tensor->deleter)
            tensor->deleter(tensor);
    }
    const DLTensor &operator*() const { return tensor->dl_tensor; }
    bool is_read_only() const { return tensor->flags & READ_ONLY; }
};

PYBIND11_MODULE(by_pybind11, module, py::mod_gil_not_used()) {
    module.def("writes", [](const py::capsule &capsule) {
        Tensor taken(capsule);
        const DLTensor &tensor = *taken;
        if (tensor.device_type != 2 || tensor.code != 2 || tensor.bits != 32 || taken.is_read_only())
            throw py::type_error("expected writable float32 on a CUDA device");
        return (uintptr_t) tensor.data + tensor.byte_offset;
    });
}

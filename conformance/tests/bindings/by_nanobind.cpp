// A module as authors of bindings write it with nanobind: arrays of a device in and out. It launches nothing.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

namespace nb = nanobind;

using Writable = nb::ndarray<float, nb::device::cuda, nb::shape<-1, -1>, nb::c_contig>;
using Constant = nb::ndarray<const float, nb::device::cuda, nb::shape<-1, -1>, nb::c_contig>;

template <typename Array> uintptr_t address(const Array &array) {
    return (uintptr_t) array.data();
}

// An array of the module's own on device 0, which ends with `owner`.
template <typename T> nb::object produce(uintptr_t data, nb::object owner) {
    using Array = nb::ndarray<nb::array_api, T, nb::device::cuda>;
    return nb::cast(Array((void *) data, {2, 3}, owner));
}

// An array of the module's own of the memory of its argument.
nb::object pass(nb::ndarray<> array) {
    auto *kept = new nb::ndarray<>(array);
    nb::capsule owner(kept, [](void *self) noexcept { delete (nb::ndarray<> *) self; });
    std::vector<size_t> shape(array.shape_ptr(), array.shape_ptr() + array.ndim());
    using Array = nb::ndarray<nb::array_api>;
    return nb::cast(Array(array.data(), array.ndim(), shape.data(), owner, array.stride_ptr(), array.dtype(),
                          array.device_type(), array.device_id()));
}

NB_MODULE(by_nanobind, module) {
    module.def("writes", &address<Writable>);
    module.def("reads", &address<Constant>);
    module.def("any", [](nb::ndarray<nb::ro> array) {
        return nb::make_tuple((uintptr_t) array.data(), array.device_type(), array.device_id());
    });
    module.def("keep", [](Writable array) { return array; });
    module.def("pass", &pass);
    module.def("produce", &produce<float>);
    module.def("produce_constant", &produce<const float>);
}

// A tvm-ffi function that makes its result, like its argument, by the allocator of the environment.

#include <tvm/ffi/extra/c_env_api.h>

int __tvm_ffi_like(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
    (void)self;
    if (num_args != 1) return -1;
    const DLTensor *like = args[0].v_ptr;
    if (args[0].type_index == kTVMFFITensor) {
        like = (const DLTensor *)((const char *)args[0].v_obj + sizeof(TVMFFIObject));
    }
    DLTensor prototype = {.device = like->device, .dtype = like->dtype, .ndim = like->ndim, .shape = like->shape};
    TVMFFIObjectHandle made;
    if (TVMFFIEnvTensorAlloc(&prototype, &made) != 0) return -1;
    result->type_index = kTVMFFITensor;
    result->v_obj = made;
    return 0;
}

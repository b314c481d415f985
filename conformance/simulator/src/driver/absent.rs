//! Functions of the driver API that are not modelled: they return NOT_SUPPORTED, and the call log
//! names them, so that a missing one is found at once.
//!
//! Grouped by the oldest version at which a consumer was seen to look them up.

use crate::abi::codes::Code;

/// Exports functions without arguments: the C calling conventions in use let the caller clean up,
/// so arguments that are not read do no harm.
macro_rules! absent {
    ($($since:literal: $($name:ident)*;)*) => {
        pub(crate) const ROWS: &[crate::entry::symbol::Row] = &[$($(
            crate::entry::symbol::Row {
                symbol: stringify!($name),
                since: $since,
                address: || {
                    // SAFETY: the name is CUDA's and this library is the one that defines it.
                    #[unsafe(export_name = stringify!($name))]
                    extern "C" fn entry() -> u32 {
                        refuse(stringify!($name))
                    }
                    entry as *const () as usize
                },
                per_thread: None,
            },
        )*)*];
    };
}

fn refuse(symbol: &'static str) -> u32 {
    crate::entry::enter::enter(
        symbol,
        crate::entry::symbol::Class::Query,
        false,
        &[],
        |_| Err(Code::NOT_SUPPORTED),
    )
}

absent! {
    2000:
        cuArrayDestroy cuCtxAttach cuCtxDetach cuDeviceGetProperties cuFuncSetBlockShape
        cuFuncSetSharedSize cuGLInit cuGLRegisterBufferObject cuGLUnmapBufferObject
        cuGLUnregisterBufferObject cuLaunch cuLaunchGrid cuLaunchGridAsync cuModuleGetFunction
        cuModuleGetTexRef cuModuleLoad cuModuleLoadData cuModuleLoadFatBinary cuModuleUnload
        cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuTexRefCreate
        cuTexRefDestroy cuTexRefGetAddressMode cuTexRefGetArray cuTexRefGetFilterMode
        cuTexRefGetFlags cuTexRefGetFormat cuTexRefSetAddressMode cuTexRefSetArray
        cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat;
    2010:
        cuModuleLoadDataEx;
    2020:
        cuFuncGetAttribute;
    2030:
        cuGLSetBufferObjectMapFlags cuGLUnmapBufferObjectAsync;
    3000:
        cuFuncSetCacheConfig cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage
        cuGraphicsMapResources cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources
        cuGraphicsUnregisterResource cuModuleGetSurfRef cuSurfRefGetArray cuSurfRefSetArray;
    3010:
        cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface
        cuVDPAUGetDevice;
    3020:
        cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayGetDescriptor_v2
        cuCtxGetCacheConfig cuCtxSetCacheConfig cuGLCtxCreate cuGLMapBufferObject
        cuGLMapBufferObjectAsync cuGraphicsResourceGetMappedPointer_v2
        cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2 cuMemcpy3D_v2 cuMemcpyAtoA_v2
        cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2
        cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuMemsetD2D16Async cuMemsetD2D16_v2
        cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2
        cuModuleGetGlobal_v2 cuTexRefGetAddress_v2 cuTexRefSetAddress_v2 cuVDPAUCtxCreate;
    4000:
        cuLaunchKernel cuMemcpy3DPeer cuMemcpy3DPeerAsync cuProfilerInitialize cuProfilerStart
        cuProfilerStop;
    4010:
        cuDeviceGetByPCIBusId cuTexRefSetAddress2D_v3;
    4020:
        cuCtxGetSharedMemConfig cuCtxSetSharedMemConfig cuFuncSetSharedMemConfig;
    5000:
        cuGraphicsResourceGetMappedMipmappedArray cuMipmappedArrayCreate cuMipmappedArrayDestroy
        cuMipmappedArrayGetLevel cuSurfObjectCreate cuSurfObjectDestroy
        cuSurfObjectGetResourceDesc cuTexObjectCreate cuTexObjectDestroy
        cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
        cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
        cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetMaxAnisotropy
        cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
        cuTexRefSetMipmappedArray;
    5050:
        cuLinkComplete cuLinkDestroy;
    6050:
        cuGLGetDevices cuGraphicsResourceSetMapFlags_v2 cuLinkAddData_v2 cuLinkAddFile_v2
        cuLinkCreate_v2 cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxPotentialBlockSize;
    7000:
        cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect cuEGLStreamConsumerDisconnect
        cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect
        cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame
        cuGraphicsEGLRegisterImage cuGraphicsResourceGetMappedEglFrame
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        cuOccupancyMaxPotentialBlockSizeWithFlags;
    8000:
        cuDeviceGetP2PAttribute cuEGLStreamConsumerConnectWithFlags cuMemRangeGetAttribute
        cuMemRangeGetAttributes cuTexRefGetBorderColor cuTexRefSetBorderColor;
    9000:
        cuEventCreateFromEGLSync cuFuncSetAttribute cuLaunchCooperativeKernel
        cuLaunchCooperativeKernelMultiDevice;
    10000:
        cuDestroyExternalMemory cuDestroyExternalSemaphore cuDeviceGetLuid
        cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
        cuGraphAddChildGraphNode cuGraphAddEmptyNode cuGraphAddHostNode cuGraphAddMemcpyNode
        cuGraphAddMemsetNode cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphDestroyNode
        cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams
        cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
        cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetType
        cuImportExternalMemory cuImportExternalSemaphore cuSignalExternalSemaphoresAsync
        cuWaitExternalSemaphoresAsync;
    10020:
        cuDeviceGetNvSciSyncAttributes cuGraphExecHostNodeSetParams
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuMemAddressFree
        cuMemAddressReserve cuMemCreate cuMemExportToShareableHandle cuMemGetAccess
        cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle
        cuMemImportFromShareableHandle cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap
        cuOccupancyAvailableDynamicSMemPerBlock;
    11000:
        cuCtxResetPersistingL2Cache cuFuncGetModule cuGraphKernelNodeCopyAttributes
        cuGraphKernelNodeGetAttribute cuGraphKernelNodeSetAttribute
        cuMemRetainAllocationHandle cuStreamCopyAttributes cuStreamGetAttribute
        cuStreamSetAttribute;
    11010:
        cuArrayGetSparseProperties cuDeviceGetTexture1DLinearMaxWidth cuGraphAddEventRecordNode
        cuGraphAddEventWaitNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
        cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
        cuGraphExecChildGraphNodeSetParams cuGraphExecEventRecordNodeSetEvent
        cuGraphExecEventWaitNodeSetEvent cuMemMapArrayAsync cuMipmappedArrayGetSparseProperties;
    11020:
        cuArrayGetPlane cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams
        cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams;
    11030:
        cuFlushGPUDirectRDMAWrites cuGraphDebugDotPrint cuGraphReleaseUserObject
        cuUserObjectRetain;
    11040:
        cuCtxGetExecAffinity cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute
        cuDeviceGraphMemTrim cuDeviceSetGraphMemAttribute cuGraphAddMemAllocNode
        cuGraphAddMemFreeNode cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams;
    11060:
        cuArrayGetMemoryRequirements cuGraphNodeGetEnabled cuGraphNodeSetEnabled
        cuLaunchKernelEx cuMipmappedArrayGetMemoryRequirements;
    11070:
        cuGraphAddBatchMemOpNode cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
        cuGraphExecBatchMemOpNodeSetParams cuMemGetHandleForAddressRange cuModuleGetLoadingMode
        cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize cuStreamBatchMemOp_v2
        cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2
        cuStreamWriteValue64_v2;
    12000:
        cuGraphAddKernelNode_v2 cuGraphExecGetFlags cuGraphExecKernelNodeSetParams_v2
        cuGraphExecUpdate_v2 cuGraphInstantiateWithParams cuGraphKernelNodeGetParams_v2
        cuGraphKernelNodeSetParams_v2 cuKernelGetAttribute cuKernelGetFunction
        cuKernelSetAttribute cuKernelSetCacheConfig cuLibraryGetGlobal cuLibraryGetKernel
        cuLibraryGetManaged cuLibraryGetModule cuLibraryGetUnifiedFunction cuLibraryLoadData
        cuLibraryLoadFromFile cuLibraryUnload cuTensorMapEncodeIm2col cuTensorMapEncodeTiled
        cuTensorMapReplaceAddress;
    12010:
        cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute
        cuCoredumpSetAttributeGlobal cuCtxSetFlags cuMulticastAddDevice cuMulticastBindAddr
        cuMulticastBindMem cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind;
    12020:
        cuGraphExecNodeSetParams cuGraphNodeSetParams;
    12030:
        cuFuncGetName cuGraphAddDependencies_v2 cuGraphAddNode_v2 cuGraphConditionalHandleCreate
        cuGraphGetEdges_v2 cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes_v2
        cuGraphRemoveDependencies_v2 cuKernelGetName cuStreamBeginCaptureToGraph
        cuStreamUpdateCaptureDependencies_v2;
    12040:
        cuCtxFromGreenCtx cuCtxGetDevResource cuDevResourceGenerateDesc
        cuDevSmResourceSplitByCount cuDeviceGetDevResource cuDeviceRegisterAsyncNotification
        cuDeviceUnregisterAsyncNotification cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad
        cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxGetDevResource cuGreenCtxRecordEvent
        cuGreenCtxWaitEvent cuKernelGetParamInfo cuLibraryEnumerateKernels
        cuLibraryGetKernelCount cuModuleEnumerateFunctions cuModuleGetFunctionCount
        cuStreamGetGreenCtx;
    12050:
        cuCtxRecordEvent cuCtxWaitEvent cuGreenCtxStreamCreate cuKernelGetLibrary;
    12060:
        cuMemBatchDecompressAsync;
    12080:
        cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId
        cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessRestore
        cuCheckpointProcessUnlock cuTensorMapEncodeIm2colWide;
    12090:
        cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback
        cuLogsUnregisterCallback;
    13000:
        cuDeviceGetHostAtomicCapabilities cuDeviceGetP2PAtomicCapabilities cuGreenCtxGetId
        cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync cuMemGetDefaultMemPool
        cuMemGetMemPool cuMemPrefetchBatchAsync cuMemSetMemPool cuMemcpy3DBatchAsync_v2
       ;
    13010:
        cuDevSmResourceSplit cuGraphExecGetId cuGraphGetId cuGraphNodeGetContainingGraph
        cuGraphNodeGetLocalId cuGraphNodeGetToolsId cuMulticastBindAddr_v2 cuMulticastBindMem_v2
        cuStreamGetDevResource;
    13020:
        cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback
        cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuFuncGetParamCount
        cuGraphNodeGetParams cuKernelGetParamCount cuMemcpy3DWithAttributesAsync
        cuMemcpyWithAttributesAsync cuStreamBeginCaptureToCig cuStreamEndCaptureToCig;
    13030:
        cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr cuLogicalEndpointBindMem
        cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport
        cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
        cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind
        cuStreamBeginRecaptureToGraph;
    13041:
        cuCheckpointOperationComplete cuDeviceGetCliqueCount cuDeviceGetCliqueInfo
        cuDeviceGetFabricClusterUuid cuGraphAddNode_v3 cuGraphNodeSetParams_v2
        cuMemGetLocationInfo;
    13050:
        cuFabricCpyBatchAsync cuTensorMapSetAllocationClass;
}

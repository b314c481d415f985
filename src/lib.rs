//! Zero-copy bridge between the CUDA Array Interface and DLPack.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod protocol;

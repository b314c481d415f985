//! Parts of arrays: what may be written in them.

use std::sync::Arc;

use dlpark::DlpackFlags;

use super::*;
use crate::protocol::device::Access;
use crate::view::LiveStream;

/// Each array of up to two axes, in each shape of up to three: only repeated elements lose their writability, also for
/// consumers of the tensor, which would else write one element by several indices.
#[test]
fn repeated_elements_are_read_only() {
    const EXTENTS: [usize; 3] = [0, 1, 3];
    let (mut repeated, mut kept) = (0, 0);
    for own in EXTENTS
        .iter()
        .flat_map(|one| EXTENTS.map(|other| [*one, other]))
    {
        let view = CaiView::from_vec(vec![0_i32; own[0] * own[1]], own).unwrap();
        let views = [view.index(0, 0).ok(), Some(view)];
        let wanted = EXTENTS.iter().flat_map(|new| {
            let pairs = EXTENTS
                .iter()
                .flat_map(|one| EXTENTS.map(|other| [*one, other]));
            pairs.map(|[one, other]| [*new, one, other])
        });
        for (view, wanted) in views
            .iter()
            .flatten()
            .flat_map(|view| wanted.clone().map(move |wanted| (view, wanted)))
        {
            let Ok(mut made) = view.broadcast(&wanted) else {
                continue;
            };
            let is_repeated = made.descriptor().len() > view.descriptor().len();
            let tensor = made.to_dlpack(LiveStream::NONE).unwrap();
            let is_read_only = tensor.flags().contains(DlpackFlags::READ_ONLY);
            assert_eq!(
                is_read_only,
                is_repeated,
                "{:?} as {wanted:?}",
                view.shape()
            );
            assert_eq!(made.typed_mut::<i32>().is_err(), is_repeated);
            repeated += usize::from(is_repeated);
            kept += usize::from(!is_repeated);
        }
    }
    // One that repeats nothing stays as it is.
    let read_only = CaiView::from_arc(Arc::from([1_i32, 2]), [2]).unwrap();
    let made = read_only.broadcast(&[1, 2]).unwrap();
    assert_eq!(made.descriptor().access(), Access::ReadOnly);
    assert!(repeated > 20 && kept > 20, "{repeated} {kept}");
}

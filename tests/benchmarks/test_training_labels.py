"""Masks for networks whose output is smaller than their picture."""

import numpy as np

from meta500.benchmarks.training import Setup, fitting_labels, load_model, load_sets


def setup(model, **options):
    data = {"size": 188, "train_samples": 1, "test_samples": 1}
    return Setup(model=model, model_options=options, dataset="digits-segmentation", dataset_options=data)


def test_masks_are_cut_to_the_output_of_the_published_unet():
    chosen = setup("unet_ronneberger", channels=1)
    train_set, _ = load_sets(chosen)
    model = load_model(chosen, train_set)
    cut = fitting_labels(model, train_set)
    assert cut.shapes == {"image": (3, 188, 188), "label": (4, 4)}
    np.testing.assert_array_equal(cut.inputs["label"], train_set.inputs["label"][:, 92:96, 92:96])


def test_masks_that_fit_and_pictures_that_do_not_are_left_alone():
    train_set, _ = load_sets(setup("unet"))
    assert fitting_labels(load_model(setup("unet", size=96), train_set), train_set) is train_set
    fitting = load_model(setup("unet", depth=2), train_set)
    assert fitting_labels(fitting, train_set) is train_set

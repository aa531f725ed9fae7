"""Callbacks that let a library's own training loop be captured: Hugging Face's Trainer, Lightning, MindSpore's Model.

::

    from capture.integrations.huggingface import PrecisionCallback    # or .lightning, or .mindspore

    trainer = Trainer(..., callbacks=[PrecisionCallback(config_path="config.json")])

Each module needs its library, and no other; docs/integrations.md is for users.
"""

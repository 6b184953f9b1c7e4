"""Which files and cases of the package TransferQueue say something about our adapter, and why the others do not.

Used by `tests.peer.run`. Paths are below the folders that the package installs.
"""

APPLICABLE = (
    "tests/e2e/test_e2e_lifecycle_consistency.py",
    "tests/e2e/test_kv_interface_e2e.py",
    "tests/test_metadata.py",
    "tests/test_streaming_dataset.py",
)
"""Run as they are."""

TUTORIALS = (
    "tutorial/01_core_components.py",
    "tutorial/02_kv_interface.py",
    "tutorial/03_metadata_concepts.py",
    "tutorial/06_streaming_dataloader.py",
)

NOT_APPLICABLE = {
    "tests/e2e/test_checkpoint_e2e.py": "saves the queue to files: refused with a sentence",
    "tests/e2e/test_ssd_offload_e2e.py": "offloads to SSD: refused with a sentence",
    "tests/test_accept_probe.py": "probes its listening sockets",
    "tests/test_async_simple_storage_manager.py": "drives its storage manager with mocks",
    "tests/test_client.py": "drives its client against a mocked ZMQ controller",
    "tests/test_controller.py": "drives its controller, a Ray actor, from inside",
    "tests/test_controller_data_partitions.py": "drives the controller's partition objects",
    "tests/test_kv_storage_manager.py": "drives its key-value storage manager with mocks",
    "tests/test_metrics.py": "its own Prometheus exporter",
    "tests/test_mooncake_utils.py": "Mooncake",
    "tests/test_ray_p2p.py": "Ray's object store",
    "tests/test_samplers.py": "calls sample() of Python objects; ours are chosen by name and run in the control Redis",
    "tests/test_serial_utils_batch_on_cpu.py": "its serialisation",
    "tests/test_serial_utils_on_cpu.py": "its serialisation",
    "tests/test_simple_storage_scheduling.py": "places its storage actors on Ray nodes",
    "tests/test_simple_storage_unit.py": "drives its storage unit over ZMQ",
    "tests/test_storage_client_factory.py": "its storage clients",
    "tests/test_storage_key_race.py": "its storage unit",
    "tests/test_storage_request_retry.py": "its storage manager's retries",
    "tests/test_tensor_utils.py": "its own helpers",
    "tests/test_yuanrong_client_zero_copy.py": "Yuanrong",
    "tests/test_yuanrong_storage_client_e2e.py": "Yuanrong",
    "tests/test_zmq_shared_context.py": "ZMQ sockets",
    "tests/test_zmq_socket_pool.py": "ZMQ sockets",
    "tutorial/04_understanding_controller.py": "looks into its controller actor",
    "tutorial/05_custom_sampler.py": "a sampler of one's own: refused with a sentence",
}

_WORDING = "wants the package's own wording; ours refuses the same input in its own sentence"
CASES_NOT_APPLICABLE = {
    "test_chunk": "passes a private argument for its storage backends",
    "test_custom_backend_meta": "a private attribute for its storage backends",
    "test_put_data_length_mismatch_raises": "drives its storage unit",
    "test_setstate_readonly_production_status": "the private form in which it is pickled",
    "test_concat_extra_info_scalar_conflict_raises_value_error": _WORDING,
    "test_union_validation_global_index_mismatch": _WORDING,
    "test_union_validation_partition_id_mismatch": _WORDING,
    "test_kv_batch_meta_init_validation_keys_tags_mismatch": _WORDING,
    "test_kv_batch_meta_init_validation_duplicate_keys": _WORDING,
    "test_kv_batch_meta_init_validation_duplicate_fields": _WORDING,
    "test_kv_batch_meta_select_keys_validation_duplicate": _WORDING,
    "test_kv_batch_meta_select_keys_validation_nonexistent": _WORDING,
    "test_kv_batch_meta_reorder_validation_size_mismatch": _WORDING,
    "test_kv_batch_meta_reorder_validation_duplicate_indexes": _WORDING,
    "test_kv_batch_meta_concat_validation_field_mismatch": _WORDING,
    "test_kv_batch_meta_concat_validation_partition_mismatch": _WORDING,
    "test_kv_batch_meta_concat_extra_info_conflict_raises": _WORDING,
}
"""Cases of applicable files that may fail, and why: they say nothing about what users of the package can do."""

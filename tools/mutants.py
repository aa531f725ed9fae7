"""Guards, how each is taken out, and the tests that must notice. Run by :mod:`tools.mutation`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One guard less.

    Attributes
    ----------
    guard
        What it keeps.
    change
        What is done to it, in words.
    file
        Where it stands.
    old, new
        Its text, exactly and once in the file, and what stands there instead.
    tests
        As pytest names them; each of them has to fail. Without parameters one of a test's cases has to.
    """

    guard: str
    change: str
    file: str
    old: str
    new: str
    tests: frozenset[str]


def _mutant(guard: str, change: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(guard, change, file, old, new, frozenset(f"tests/{test}" for test in tests))


MUTANTS = (
    # --- never losing data -------------------------------------------------------------------------------------------
    _mutant(
        "the barrier comes before the journal",
        "the journal is appended first",
        "msformat/writer.py",
        """\
            if self._store is not None and self._is_dirty:
                self._store.sync()
            if self._lines:
                self._journal.append(self._lines)
""",
        """\
            if self._lines:
                self._journal.append(self._lines)
            if self._store is not None and self._is_dirty:
                self._store.sync()
""",
        "unit/test_writer.py::test_bytes_barrier_journal_documents",
        "crash/test_kill_writer.py::test_kill",
    ),
    _mutant(
        "a commit waits for the disk",
        "the journal is not synced",
        "msformat/journal.py",
        """\
            if self._fsync:
                os.fsync(self._lock.descriptor)
""",
        "",
        "unit/test_journal.py::test_a_batch_is_on_disk_when_append_returns",
    ),
    _mutant(
        "a file is on disk before it has its name",
        "atomic_file renames without fsync",
        "msformat/atomic.py",
        """\
            if fsync:
                os.fsync(stream.fileno())
""",
        "",
        "unit/test_atomic.py::test_a_file_is_on_disk_before_it_has_its_name",
    ),
    _mutant(
        "a file has its name only when it is whole",
        "atomic_file writes under the final name",
        "msformat/atomic.py",
        "    temporary = temporary_sibling(path)\n    with _naming(path):",
        "    temporary = os.fspath(path)\n    with _naming(path):",
        "unit/test_atomic.py::test_a_file_is_whole_or_not_there",
        "crash/test_small_disk.py::test_a_small_disk_is_full_while_a_result_is_written",
    ),
    _mutant(
        "temporaries go with the error",
        "atomic_file leaves them",
        "msformat/atomic.py",
        """\
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    if fsync:
""",
        """\
        raise
    if fsync:
""",
        "unit/test_atomic.py::test_a_file_is_whole_or_not_there",
        "crash/test_small_disk.py::test_a_small_disk_is_full_while_a_result_is_written",
    ),
    _mutant(
        "what a dead writer of Zarr left goes with the next",
        "it stays",
        "msformat/stores/zarr.py",
        "        if was_begun or log.inherited:\n",
        "        if False:\n",
        "crash/test_shard_kill.py::test_a_kill_while_a_unit_is_made",
        "crash/test_shard_kill.py::test_a_kill_inside_shards",
    ),
    _mutant(
        "what dead workers left of groups that they shared goes",
        "it stays",
        "msformat/convert.py",
        "    sweep(location)\n    return [first, *reports]\n",
        "    return [first, *reports]\n",
        "crash/test_worker_kill.py::test_groups_that_a_dead_worker_had_half_made",
    ),
    _mutant(
        "half a batch is cut off the journal",
        "it stays",
        "msformat/journal.py",
        "            os.ftruncate(self._lock.descriptor, self._size)\n",
        "            pass\n",
        "unit/test_journal.py::test_half_a_batch_is_cut_off",
        "crash/test_disk_full.py::test_full_in_the_middle_of_the_journal",
    ),
    _mutant(
        "HDF5's synced pages change in a commit only",
        "they are changed in place",
        "msformat/stores/hdf5_paged.py",
        "        border = min(max(start, self._border), end)\n",
        "        border = start\n",
        "unit/test_hdf5.py::test_paged_file_is_a_file_whose_synced_part_stands_still",
    ),
    _mutant(
        "nothing is promised in a place that is gone",
        "a commit does not look",
        "msformat/journal.py",
        "        if not self._lock.is_in_place():\n",
        "        if False:\n",
        "crash/test_moved.py::test_a_unit_that_is_removed_while_it_is_written",
    ),
    _mutant(
        "one writer a place",
        "a lock that is held is no hindrance",
        "msformat/filelock.py",
        "    except BlockingIOError:\n        return False\n",
        "    except BlockingIOError:\n        return True\n",
        "security/test_convert_paths.py::test_a_second_writer_is_refused_and_a_dead_ones_lock_is_taken",
    ),
    _mutant(
        "a dump is never overwritten unasked",
        "the writer does not look",
        "msformat/writer.py",
        "            if os.path.lexists(os.path.join(self.unit_dir, name)):\n",
        "            if False:\n",
        "unit/test_writer.py::test_a_finished_unit_is_never_overwritten",
    ),
    _mutant(
        "files of strangers are never removed",
        "everything in a unit is taken for ours",
        "msformat/destination.py",
        "            if is_file and (is_temporary(name) or is_ours(relative)):\n",
        "            if is_file:\n",
        "security/test_convert_paths.py::test_a_stranger_survives_a_death_in_the_middle_of_overwriting",
        "reports/test_robustness.py::test_r154_nothing_of_a_stranger_is_ever_removed",
    ),
    _mutant(
        "workers end with their process",
        "they do not look after it",
        "msformat/workers.py",
        "initializer=_end_with_parent)",
        "initializer=None)",
        "crash/test_many_processes.py::test_workers_end_with_the_process_that_they_work_for",
    ),
    # --- never harming the training ----------------------------------------------------------------------------------
    _mutant(
        "a forked child leaves the parent's dump alone",
        "the writer does not look whose it is",
        "msformat/writer.py",
        "        if os.getpid() != self._pid:\n            raise StoreError",
        "        if False:\n            raise StoreError",
        "unit/test_writer.py::test_a_forked_child_cannot_write",
    ),
    _mutant(
        "what capture raises goes no further",
        "the observer catches nothing",
        "capture/observer.py",
        "        except Exception as error:  # noqa: BLE001 (whatever it is, it is not the training's fault)\n",
        "        except ZeroDivisionError as error:\n",
        "capture/test_session.py::test_what_capture_itself_raises_costs_one_entry_and_is_said",
    ),
    _mutant(
        "a store that fails ends the unit and not the training",
        "the sink lets it out",
        "capture/sink.py",
        "        except Exception as error:  # noqa: BLE001 (nothing here may reach the training)\n"
        "            if self._writer is None or _is_fatal(error):\n",
        "        except ZeroDivisionError as error:\n            if self._writer is None or _is_fatal(error):\n",
        "crash/test_capture_sink.py::test_disk_full",
    ),
    # --- never trusting input ----------------------------------------------------------------------------------------
    _mutant(
        "a name never leads outside",
        "names are not looked at",
        "msformat/stores/files.py",
        '        if file[:1] == "/" or ".." in parts:\n',
        "        if False:\n",
        "security/test_files_escapes.py::test_names_that_lead_outside",
    ),
    _mutant(
        "links that lead outside are refused",
        "they are followed",
        "msformat/filesystem.py",
        '        if not self._is_inside(real):\n            raise UnsafeInputError(f"{full}: is a link that leads',
        '        if False:\n            raise UnsafeInputError(f"{full}: is a link that leads',
        "security/test_files_escapes.py::test_links_that_lead_outside",
    ),
    _mutant(
        "nothing is written through a link",
        "the folder of tensors may be one",
        "msformat/stores/files.py",
        "        if os.path.islink(directory):\n",
        "        if False:\n",
        "security/test_files_escapes.py::test_writing_never_goes_through_a_linked_directory",
    ),
    _mutant(
        "a tensor file holds the bytes that its shape needs",
        "npy and pt are not checked",
        "msformat/stores/strided.py",
        "        if needed > self.nbytes:\n",
        "        if False:\n",
        "security/test_pt_attacks.py::test_an_offset_behind_the_storage",
    ),
    _mutant(
        "a view does not repeat a small storage without end",
        "it may",
        "msformat/stores/strided.py",
        "        if wanted > max(self.nbytes, _REPEATED_BYTES):\n",
        "        if False:\n",
        "security/test_pt_attacks.py::TestBombs::test_views_that_repeat_a_storage_without_end",
    ),
    _mutant(
        "members of a zip do not overlap",
        "they may",
        "msformat/stores/zipmembers.py",
        "        if begin < reached:\n",
        "        if False:\n",
        "security/test_pt_attacks.py::test_overlapping_members",
    ),
    _mutant(
        "a pickle names nothing but what tensors need",
        "any name is taken",
        "msformat/stores/ptpickle.py",
        "if name not in _ALLOWED:",
        "if False:",
        "security/test_pt_attacks.py::test_a_name_that_is_only_dropped_is_refused_too",
    ),
    _mutant(
        "a pickle has no opcodes but those of tensors",
        "others are skipped",
        "msformat/stores/ptpickle.py",
        "            if action is None:\n",
        "            if action is None:\n                continue\n",
        "security/test_pt_attacks.py::test_opcodes_no_tensor_needs",
    ),
    _mutant(
        "JSON is not nested without end",
        "depth is not counted",
        "msformat/jsontext.py",
        "        if depth > max_depth:\n",
        "        if False:\n",
        "security/test_json_attacks.py::test_a_raised_recursion_limit_does_not_let_the_stack_overflow",
    ),
    _mutant(
        "documents are no bombs",
        "any ratio is believed",
        "msformat/room.py",
        "    if nbytes > packed * _DOCUMENT_RATIO:\n",
        "    if False:\n",
        "security/test_bombs.py::test_a_document_that_packs_like_no_text",
    ),
    _mutant(
        "stored bytes are those that were written",
        "the digest is not compared",
        "msformat/verify.py",
        "        if computed.digest != stored.digest:\n",
        "        if False:\n",
        "unit/test_sums.py::test_a_wrong_digest_is_told_for_each_name",
        "unit/test_verify.py::test_one_flipped_bit_in_a_store_with_digests",
    ),
    _mutant(
        "HDF5 links stay inside the file",
        "soft and external links are followed",
        "msformat/stores/hdf5_guard.py",
        "    if kind != h5py.h5l.TYPE_HARD:\n",
        "    if False:\n",
        "security/test_hdf5_attacks.py::test_one_named_error_and_the_rest_stays_readable",
        "reports/test_robustness.py::test_r158_hdf5_never_reads_other_files",
    ),
    _mutant(
        "Zarr codecs are on a list",
        "any codec is taken",
        "msformat/stores/zarr_codecs.py",
        '    if name not in ("bytes", "transpose", *_DECODERS):\n',
        "    if False:\n",
        "security/test_zarr_attacks.py::test_a_pickle_behind_harmless_codecs",
    ),
    # --- permissions -------------------------------------------------------------------------------------------------
    _mutant(
        "unfinished files are their owner's alone",
        "modes are left as they are",
        "msformat/atomic.py",
        "            os.chmod(target, wanted)\n",
        "            pass\n",
        "unit/test_umask.py::test_a_file_is_private_until_it_is_whole",
        "unit/test_umask.py::test_a_conversion_is_private_until_it_is_whole",
    ),
)

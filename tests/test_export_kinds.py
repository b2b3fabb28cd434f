"""Every kind of export is in all tables by kind."""

from __future__ import annotations

from types import ModuleType

import pytest

from penstock import model, sdk
from penstock.cli.checks.destinations import ROUTE_OF_KIND
from penstock.cli.definition_flags import EXPORT_FLAGS
from penstock.model import ExportDefinition
from penstock.model.export_definition import CONFIG_OF_KIND, S3_TASK_EXECUTOR
from penstock.pipeline.destinations import DESTINATIONS, import_destination
from penstock.pipeline.destinations.destination import Destination
from tests.pipeline.destinations.suite import HARNESSES

KINDS = set(ExportDefinition.__struct_fields__)
# All but S3 tasks, which are uploads.
MESSAGE_KINDS = KINDS - {S3_TASK_EXECUTOR}


def test_each_kind_has_a_configuration() -> None:
    assert set(CONFIG_OF_KIND) == KINDS


@pytest.mark.parametrize("package", [model, sdk])
def test_each_configuration_is_a_public_name(package: ModuleType) -> None:
    for config_type in CONFIG_OF_KIND.values():
        assert getattr(package, config_type.__name__) is config_type
        assert config_type.__name__ in package.__all__


def test_each_kind_of_messages_has_a_destination() -> None:
    assert set(DESTINATIONS) == MESSAGE_KINDS


@pytest.mark.parametrize("kind", sorted(DESTINATIONS))
def test_destination_can_be_imported(kind: str) -> None:
    found = import_destination(kind)

    assert isinstance(found, type)
    assert issubclass(found, Destination)


def test_each_kind_of_messages_has_a_harness() -> None:
    assert {harness.kind for harness in HARNESSES} == MESSAGE_KINDS


def test_each_kind_has_a_command_line_option() -> None:
    assert sorted(flag.kind for flag in EXPORT_FLAGS) == sorted(KINDS)


def test_doctor_checks_each_kind() -> None:
    assert set(ROUTE_OF_KIND) == KINDS


def test_dashboard_has_a_label_for_each_kind() -> None:
    for config_type in CONFIG_OF_KIND.values():
        assert config_type.label

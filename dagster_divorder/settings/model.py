"""All settings as one frozen object."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WrapValidator,
    field_serializer,
    model_validator,
)

from dagster_divorder.core.order import STRATEGIES, Strategy
from dagster_divorder.core.order.schedule import window_share
from dagster_divorder.core.order.strategy import Checked, nearest, one_of
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.settings import sections
from dagster_divorder.settings.sections import RULES, FitName, trained_order


class Settings(Checked):
    """All settings. Made by `load_settings`, or from keyword arguments, which read neither file nor environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Annotated[sections.Input, WrapValidator(sections.one_or_several)] = sections.Input()
    chats: sections.Chats = sections.Chats()
    sequence: sections.Sequence = sections.Sequence()
    order: sections.Order = sections.Order()
    mixing: sections.Mixing = sections.Mixing()
    curriculum: sections.Curriculum = sections.Curriculum()
    packing: sections.Packing = sections.Packing()
    heldout: sections.Heldout = sections.Heldout()
    selection: sections.Selection = sections.Selection()
    clusters: sections.Clusters = sections.Clusters()
    model: sections.Model = sections.Model()
    embedding: sections.Embedding = sections.Embedding()
    deep: sections.Deep = sections.Deep()
    refit: sections.Rules = RULES
    """When a fit of the corpus is renewed. auto: when the corpus has drifted from it, by its own rule; never: only if
    its settings change. For one run: `divorder run --refit NAME`."""
    advanced: sections.Advanced = sections.Advanced()
    exports: sections.Exports = sections.Exports()
    output: sections.Output = sections.Output()
    store: sections.Store = sections.Store()
    engine: sections.Engine = sections.Engine()
    evidence: sections.Evidence = sections.Evidence()
    seed: int = Field(0, ge=0, lt=1 << 63)
    """Seed of every random choice. Another seed gives another order, just as good."""

    @field_serializer("input", mode="wrap")
    def _list_of_several(self, value: sections.Input, serialise: SerializerFunctionWrapHandler) -> Any:
        return (
            [serialise(block) for block in value.each]
            if isinstance(value, sections.Inputs)
            else serialise(value)
        )

    @model_validator(mode="after")
    def _what_is_mixed_is_balanced(self) -> Self:
        if self.mixing.on and self.mixing.trait not in self.order.traits:
            traits = {**self.order.traits, self.mixing.trait: 1.0}
            # Frozen models allow no assignment.
            object.__setattr__(self, "order", self.order.model_copy(update={"traits": traits}))
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        # Frozen models allow no assignment.
        object.__setattr__(self, "packing", self.packing.fitting(self.forms))
        score = f"curriculum.score is {self.curriculum.score!r}"
        epochs = f"sequence.epochs is {self.sequence.epochs}"
        plans = {score: self.curriculum.on, epochs: self.sequence.epochs > 1}
        fault = self.packing.fault(self.forms) or self.exports.fault(self.sequence.batch)
        if self.mixing.phase and self.curriculum.on:
            fault = f"{score}, and mixing has phases; an order follows one of them: remove the other"
        elif self.mixing.phase and self.sequence.epochs > 1:
            fault = (
                f"{epochs}, and mixing has phases, which span all of training; set sequence.epochs = 1, and "
                "mixing.total_tokens to the tokens of all epochs"
            )
        elif self.order.extends and any(plans.values()):
            plan = next(plan for plan, present in plans.items() if present)
            fault = (
                f'{plan}, and order.append is "extend"; expected an order of one epoch without a schedule, since an '
                'append would change what every later step is to read: remove it, or set order.append = "whole"'
            )
        elif self.evidence.tokens is not None and not self.holds_out:
            fault = (
                "evidence.tokens is set, but no documents are held out to validate on; set heldout.documents to a "
                "share, such as 0.01"
            )
        if fault := fault or self._fault_of_options():
            raise ValueError(fault)
        return self

    def _fault_of_options(self) -> str:
        """Why order.options cannot be used, "" if they can: strategies in use declare all of them."""
        in_use = [self.order.strategy, self.sequence.strategy]
        if self.evidence.tokens is not None:
            in_use += [name for order in map(trained_order, self.evidence.orders) for name in order]
        try:
            declared = {key for name in in_use if name in STRATEGIES for key in self.strategy(name).options}
        except InputError as error:
            return f"order.options: {error}"
        if not (others := sorted(self.order.options.keys() - declared)):
            return ""
        known = {known for strategy in STRATEGIES.values() for known in strategy.Options.model_fields} - {
            *others
        }
        return (
            f"order.options.{others[0]} is an option of none of the strategies in use, "
            f"{', '.join(dict.fromkeys(in_use))}; remove it{nearest(others[0], known)}"
        )

    def strategy(self, name: str) -> Strategy:
        """A strategy with the options in `order.options` that it declares."""
        given = self.order.options
        declared = STRATEGIES[name].Options.model_fields
        return STRATEGIES[name].with_options(**{key: given[key] for key in declared if key in given})

    def strategy_options(self, name: str) -> dict[str, Any]:
        """The options of a strategy, with defaults."""
        return dict(self.strategy(name).options)

    def order_arguments(self, name: str, seed: int | None = None) -> dict[str, Any]:
        """The arguments of `core.order.order` for a strategy that do not depend on the items. seed: by default
        `seed`."""
        return {
            "strategy": name,
            "seed": self.seed if seed is None else seed,
            "batch": self.sequence.batch,
            **self.strategy_options(name),
        }

    def window(self, tokens: int) -> float:
        """The share of training of a window of the curriculum. tokens: of all items, with padding."""
        sequence = self.sequence.length / max(1, tokens)
        return window_share(self.sequence.batch * sequence, sequence, self.curriculum.pieces)

    def refitting(self, *fits: FitName) -> Self:
        """The settings of one run that refits these fits, whatever their rules.

        Raises:
            InputError: no fit has one of the names.
            SettingsError: `model` is named while tokens of the present base model are frozen.
        """
        for fit in fits:
            one_of("refit", fit, RULES)
        if "model" in fits and self.order.keeps:
            key, anew = ("append", '"whole"') if self.order.extends else ("frozen_tokens", "0")
            raise SettingsError(
                f"refit names 'model', and order.{key} is {getattr(self.order, key)!r}: what stays of the last output "
                f"has tokens of the present base model; leave 'model' out, or set order.{key} = {anew} to order "
                "everything anew"
            )
        return self.model_copy(update={"refit": self.refit | dict.fromkeys(fits, "now")})

    @property
    def forms(self) -> frozenset[str]:
        """The forms of the inputs' records (`Input.form`)."""
        return frozenset(block.form for block in self.input.each)

    @property
    def has_chats(self) -> bool:
        """Whether an input holds something other than plain texts: conversations, prompts with completions, pairs."""
        return self.forms != {"text"}

    @property
    def holds_out(self) -> bool:
        """Whether documents are kept out of training."""
        return self.heldout.documents is not None

    @property
    def selects(self) -> bool:
        """Whether training uses a selection of documents."""
        return self.selection.method != "none"

    @property
    def mixed_trait(self) -> str:
        """`mixing.trait`; `cluster`, which every run has, if neither a mix nor held-out documents use the trait."""
        return self.mixing.trait if self.mixing.on or self.holds_out else "cluster"

    @property
    def repeats(self) -> bool:
        """Whether the stage `repeats` decides how often each record is trained on; if not, each is used once."""
        return self.mixing.on or self.holds_out or self.selects or bool(self.order.cut)

    @property
    def copies_apart(self) -> bool:
        """Whether equal texts, repeats included, are spread as far apart as possible."""
        return self.order.separate_copies or self.mixing.on

    @property
    def deep_model(self) -> str:
        """Id or directory of the model of deep_embeddings, or `bootstrap`."""
        return self.deep.model or self.model.base

"""AlignmentELBO: exact sums over latent alignments, in one pass of the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_attention._checks import as_float, check_count
from pyro_attention._compat import compute_dice_elbo
from pyro_attention.alignments._messages import as_site, sample_sites, site_of
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.alignments.replay import replay_enumeration
from pyro_attention.alignments.summed import AlignmentsAbove, EdgeSum, EnumeratedAlignment, SummedLikelihood
from pyro_attention.draws import REMEDY, Minibatch, kind_of_handlers, look_when_due, modes
from pyro_attention.families.distribution import ContinuousWeights
from pyro_attention.guide import AttentionGuide, check_guide, forget_run, is_attention_site, plates_of
from pyro_attention.objectives.elbo import DifferentiableELBO
from pyro_attention.objectives.validation import check_run

if TYPE_CHECKING:
    from pyro_attention._typing import Args, Kwargs, Message, Model, Trace
    from pyro_attention.alignments._messages import Site, Traces

__all__ = ["AlignmentELBO"]


class AlignmentELBO(DifferentiableELBO, TraceEnum_ELBO):
    r"""Enumerating ELBO for an :class:`AttentionGuide`: exact sums over alignments in one run of the model a step.

    Under the family ``Marginal`` its value is the log evidence, under ``Categorical`` the exact ELBO:

    .. math:: \log \sum_z p(z)\, f(y \mid z), \qquad \mathrm{E}_q[\log f(y \mid z)] - \mathrm{KL}(q \| p).

    The queries must lie in plates: each alignment is then summed out on its own, at the cost of one likelihood a key.
    In ``pyro.markov`` a step's alignment may depend on that of the step before. Other discrete latents that the model
    marks by ``infer={"enumerate": "parallel"}`` are summed out with the alignments.
    Give ``max_plate_nesting`` (the number of nested plates), or it is guessed by an additional pass at first.

    Of a :class:`SparseAlignment`, the prior or the posterior, only keys with a positive probability are summed over,
    which is still exact: a likelihood is computed for as many keys as the query with the most of them has. A
    :class:`SummedLikelihood` says itself how it is summed: the objective calls its method ``below_alignments``. A
    :class:`TokenLikelihood` is computed at possible keys and unmasked items alone, so that padding costs nothing.

    Alignments over the edges of a graph need no plate: a :class:`NodeLikelihood` is computed at each edge, and sums
    over the edges of every node, however many they are. The traces hold such a site as observed: its value is the set
    of all edges, with the log probability 0, or, below a posterior, the bound -KL.

    Args:
        args: Positional arguments of Pyro's ``TraceEnum_ELBO``.
        options: Keyword arguments of ``TraceEnum_ELBO``, such as ``max_plate_nesting``.
        roulette: Alignments whose posterior probability is below this number are left out of the gradient of a
            :class:`TokenLikelihood` at random, and count for more where they stay (Russian roulette). The ELBO is exact
            and its gradient unbiased, and the steps of a trained network are faster; 0.001 is a good value. 0 leaves
            out none.

    Attributes:
        support_record: Mean number of keys with a positive probability at every sparse site, over the unmasked queries
            of the last evaluation.
        cut_record: Share of these queries whose sparsemax has more keys than the k of the site.

    Raises:
        NotImplementedError: At a call: ``vectorize_particles`` is True.
        ValueError: The roulette is no probability; at a call: the ELBO is NaN or infinite, parameters would not train,
            or a posterior depends on a latent that is summed out under its prior.

    Example:
        >>> import pyro, torch
        >>> from pyro_attention import AlignmentPrior, AttentionGuide, Dense, LatentAttention, Marginal
        >>> attention = LatentAttention("alignment", AlignmentPrior())
        >>> def model(scores, values, y):
        ...     with pyro.plate("queries", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y)
        >>> elbo = AlignmentELBO(max_plate_nesting=1)
        >>> guide = AttentionGuide(model, Marginal())
        >>> round(elbo.loss(model, guide, torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)), 3)  # log 2 pi
        1.838

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.
    """

    def __init__(self, *args: Any, roulette: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        check_count("num_particles", self.num_particles)
        if not 0 <= roulette < 1:
            raise ValueError(f"AlignmentELBO: roulette is {roulette}, expected a probability in [0, 1), such as 0.001")
        self.roulette = roulette
        self.support_record: dict[str, Tensor] = {}
        self.cut_record: dict[str, Tensor] = {}
        self._autocasts: list[torch.autocast] = []

    def _evaluate(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Tensor:
        elbo = torch.zeros(())
        with self._autocast_of_the_model_alone():
            for traces in self._get_traces(model, guide, args, kwargs):
                with _ImpossibleAsZero():
                    elbo = elbo + compute_dice_elbo(*traces) / self.num_particles
        return -elbo

    @contextmanager
    def _autocast_of_the_model_alone(self) -> Iterator[None]:
        """Pyro's sums are products of matrices: in half precision their value is right, and their gradient is not."""
        self._autocasts = [
            torch.autocast(device, dtype=torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ]
        with ExitStack() as stack:
            for autocast in self._autocasts:
                stack.enter_context(torch.autocast(autocast.device, enabled=False))
            try:
                yield
            finally:
                self._autocasts = []

    def _get_trace(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Traces:
        with ExitStack() as stack:
            for autocast in self._autocasts:
                stack.enter_context(autocast)
            traces: Traces = super()._get_trace(model, guide, args, kwargs)
        _sum_in_one_dtype(traces)
        return traces

    def _get_traces(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Iterator[Traces]:
        self.support_record, self.cut_record = {}, {}
        for model_trace, guide_trace in self._get_enumerated(model, guide, args, kwargs):
            self._terms = {
                name: site_of(model_trace, name)["log_prob"].detach().sum() for name in model_trace.observation_nodes
            }
            yield model_trace, guide_trace

    def _get_enumerated(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Iterator[Traces]:
        messenger = poutine.unwrap(guide)
        if not isinstance(messenger, AttentionGuide):
            yield from super()._get_traces(model, guide, args, kwargs)
            return
        if self.vectorize_particles:
            raise NotImplementedError("AlignmentELBO does not vectorize particles; pass vectorize_particles=False")
        if self.max_plate_nesting == float("inf"):
            self._guess_max_plate_nesting(model, guide, args, kwargs)
        self._check_broadcasts(model, guide, args, kwargs)
        minibatch = Minibatch()
        for _ in range(self.num_particles):
            # posteriors stand inside, so what is enumerated is their support
            enumeration = _Enumeration(-1 - int(self.max_plate_nesting), self.roulette)
            try:
                with minibatch:
                    traces = self._get_trace(model, enumeration(guide), args, kwargs)
            finally:
                forget_run(messenger)
            enumeration.check_edges()
            check_run(self, guide, *traces)
            _check_sums(*traces, edges=enumeration.edges)
            summed = _summed_in_model(*traces)
            _leave_out_point_masses(*traces, summed=summed)
            _check_posteriors(traces[1], summed=summed)
            _check_readers(*traces)
            _check_scales_of_nodes(*traces, edges=enumeration.edges)
            self._record(self.support_record, enumeration.sizes)
            self._record(self.cut_record, enumeration.cuts)
            yield traces

    def _record(self, record: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Add the values of one particle, by site, to a mean over the particles."""
        for name, value in values.items():
            record[name] = record.get(name, 0) + value / self.num_particles

    def _check_broadcasts(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> None:
        """Raise ValueError where a model is another one below enumerated alignments than below single ones.

        It is looked at in the first, 10th, 100th, ... call with a model.
        """
        messenger, nesting = check_guide(guide), int(self.max_plate_nesting)

        def run(enumeration: _Enumeration, fixed: Messenger | None = None) -> Traces:
            around = guide if fixed is None else fixed(guide)
            if fixed is None or enumeration.edges:  # over edges there are no single alignments
                around = enumeration(around)
            try:
                return self._get_trace(model, around, args, kwargs)
            finally:
                forget_run(messenger)

        def look() -> str | None:
            enumeration = _Enumeration(-1 - nesting, self.roulette)
            return replay_enumeration(partial(run, enumeration), lambda at: partial(run, enumeration, at), nesting)

        kind = "enumeration", modes(messenger.model), kind_of_handlers(guide)
        reason, _ = look_when_due(messenger.model, kind, look)
        if reason is not None:
            raise ValueError(
                f"the model does not broadcast over alignments that are enumerated at the left of its plates: "
                f"{reason}; {REMEDY}"
            )


def _sum_in_one_dtype(traces: Traces) -> None:
    """Let all log probabilities have one dtype, of 32 bits or more, as sums over alignments are products of them."""
    sites = [site for trace in traces for site in sample_sites(trace) if "packed" in site]
    log_probs = [log_prob for site in sites if isinstance(log_prob := site["packed"]["log_prob"], Tensor)]
    dtype = torch.float32
    for log_prob in log_probs:
        dtype = torch.promote_types(dtype, log_prob.dtype)
    for site in sites:
        packed: dict[str, Any] = site["packed"]
        for name in ("log_prob", "unscaled_log_prob"):
            if name in packed:
                packed[name] = _packed_to(packed[name], dtype)
        if "score_parts" in packed:
            parts = packed["score_parts"]
            packed["score_parts"] = type(parts)(*(_packed_to(part, dtype) for part in parts))


def _packed_to(log_prob: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    if not isinstance(log_prob, Tensor) or log_prob.dtype == dtype:
        return log_prob
    converted = log_prob.to(dtype)
    vars(converted)["_pyro_dims"] = vars(log_prob)["_pyro_dims"]
    return converted


def _dims_of(site: Site) -> set[str]:
    """Return the symbols of the dimensions, plates and enumerated ones, that the log probability of a site has."""
    return set(vars(site["packed"]["log_prob"])["_pyro_dims"])


class _ImpossibleAsZero(TorchFunctionMode):
    """Sets impossible terms to zero where Pyro looks for them and leaves them out, for which it waits for a device."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is Tensor.all:  # of Pyro's sums alone, which ask it whether all terms are possible
            return False
        if func is Tensor.masked_select:
            term, possible = args
            return term.where(possible, 0)
        return func(*args, **(kwargs or {}))


def _check_sums(model_trace: Trace, guide_trace: Trace, *, edges: Collection[str]) -> None:
    """Raise ValueError when there is nothing to sum out, but weights whose KL has a closed form elsewhere."""
    sites = {site["name"]: site for trace in (model_trace, guide_trace) for site in sample_sites(trace)}
    if edges or any("_enumerate_dim" in site["infer"] for site in sites.values()):
        return
    for name, site in sites.items():
        if is_attention_site(site) and isinstance(site["fn"], ContinuousWeights) and site["mask"] is not False:
            raise ValueError(
                f"site '{name}' has {type(site['fn']).__name__}, and AlignmentELBO finds nothing to sum out, so it "
                f"would only estimate the KL of that site by its draws; use AttentionELBO, or elbo_for(guide)"
            )


def _summed_in_model(model_trace: Trace, guide_trace: Trace) -> dict[object, str]:
    """Return the names of the sites that are summed out under their prior, by the symbols of their dimensions."""
    return {
        site_of(model_trace, name)["infer"].get("_enumerate_symbol"): name
        for name in model_trace.stochastic_nodes
        if name not in guide_trace.nodes
    }


def _leave_out_point_masses(model_trace: Trace, guide_trace: Trace, *, summed: Mapping[object, str]) -> None:
    """Take soft attention out of the traces where it depends on what is summed out in the model: it has no terms."""
    for name in guide_trace.stochastic_nodes:
        site = site_of(guide_trace, name)
        if is_attention_site(site) and site["mask"] is False and summed.keys() & _dims_of(site):
            del model_trace.nodes[name], guide_trace.nodes[name]


def _check_posteriors(guide_trace: Trace, *, summed: Mapping[object, str]) -> None:
    """Raise ValueError when a posterior depends on what is summed out in the model."""
    for name in guide_trace.stochastic_nodes:
        for symbol in summed.keys() & _dims_of(site_of(guide_trace, name)):
            if name.endswith("_unobserved"):
                raise ValueError(
                    f"site '{name}': obs_mask= makes a latent site of what is not observed below '{summed[symbol]}', "
                    f"which is summed out; hide it by `with poutine.mask(mask=...):` around the observation instead"
                )
            raise ValueError(
                f"site '{name}': its posterior depends on '{summed[symbol]}', which is summed out; give "
                f"'{summed[symbol]}' a posterior too, or sum both out (the family Marginal)"
            )


def _check_readers(model_trace: Trace, guide_trace: Trace) -> None:
    """Raise ValueError where a site reads an alignment outside of its plates, or has another scale than it.

    Pyro sums each entry of a plate on its own, and would combine the alignments of a plate that is left in silence.
    """
    sites = [*(site_of(model_trace, name) for name in model_trace.stochastic_nodes), *sample_sites(guide_trace)]
    alignments = {site["infer"]["_enumerate_symbol"]: site for site in sites if "_enumerate_symbol" in site["infer"]}
    for reader in sample_sites(model_trace):
        for symbol in alignments.keys() & _dims_of(reader):
            alignment = alignments[symbol]
            _check_plates_of_reader(reader, alignment)
            if alignment["name"] not in guide_trace:  # summed under its prior
                _check_scale_of_reader(reader, alignment)


def _check_scales_of_nodes(model_trace: Trace, guide_trace: Trace, *, edges: Mapping[str, EdgeSum]) -> None:
    """Raise ValueError where nodes have another scale than the alignment over edges whose evidence they are."""
    for reader in sample_sites(model_trace):
        name = reader["fn"].site if isinstance(reader["fn"], SummedLikelihood) else None
        if name is not None and name in edges and edges[name].evidence:
            _check_scale_of_reader(reader, site_of(guide_trace if name in guide_trace else model_trace, name))


def _check_plates_of_reader(reader: Site, alignment: Site) -> None:
    missing = sorted(plates_of(alignment).keys() - plates_of(reader).keys())
    if missing:
        raise ValueError(
            f"site '{reader['name']}' reads '{alignment['name']}', which is summed out, but lies outside of its plates "
            f"{missing}, expected it inside; open one plate object around both (`plate = pyro.plate(...)`, then `with "
            f"plate:` for each of them)"
        )


def _check_scale_of_reader(reader: Site, alignment: Site) -> None:
    scale, expected_scale = reader["scale"], alignment["scale"]
    are_numbers = isinstance(scale, int | float) and isinstance(expected_scale, int | float)
    if are_numbers and scale != expected_scale:
        raise ValueError(
            f"site '{reader['name']}' reads '{alignment['name']}', which is summed out, but its scale is {scale:g}, "
            f"expected {expected_scale:g} as of the alignment; a minibatch of the observations of one alignment has no "
            f"exact sum: open the subsampled plate, or poutine.scale, around both, or observe all of them"
        )


class _Enumeration(EnumMessenger):
    """Handler that enumerates alignments, and tells the likelihoods below them what they are summed over.

    Attributes:
        alignments: Enumerated alignments of the run so far, by their dimension.
        edges: Sums over the edges of a graph, by site.
        sizes: Mean number of possible keys of every sparse alignment, by site.
        cuts: Share of its queries with more possible keys than the site holds, by site.
    """

    def __init__(self, first_available_dim: int, roulette: float) -> None:
        super().__init__(first_available_dim)
        self.roulette = roulette
        self.alignments: dict[int, EnumeratedAlignment] = {}
        self.edges: dict[str, EdgeSum] = {}
        self.sizes: dict[str, Tensor] = {}
        self.cuts: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Message) -> None:
        if site_is_subsample(msg):  # a plate that is opened: its indices are neither enumerated nor read by a sum
            return
        site = as_site(msg)
        if site["is_observed"] and isinstance(site["value"], Tensor) and site["value"].is_floating_point():
            site["value"] = as_float(site["value"])  # so that its likelihood is not rounded to half precision
        if self._sum_in_event(site):
            return
        super()._pyro_sample(msg)
        self._count_reader(site)
        fn, dim = site["fn"], site["infer"].get("_enumerate_dim")
        if isinstance(fn, AlignmentDistribution) and dim is not None:
            self._add_alignment(site, fn, dim)
        elif isinstance(fn, SummedLikelihood) and site["is_observed"] and (self.alignments or self.edges):
            site["fn"] = fn.below_alignments(self._alignments_above(site))
            if fn.site in self.edges:
                site["mask"] = None  # which the sum over edges has taken in

    def _sum_in_event(self, site: Site) -> bool:
        """Sum over an alignment whose queries lie in the event, if the site is one; return whether it is."""
        infer, posterior = site["infer"], site["fn"]
        if site["is_observed"] or not infer.get("enumerate") or not isinstance(posterior, AlignmentDistribution):
            return False
        family = infer.get("family")
        summed = posterior.sum_in_event(infer["prior"], evidence=family is not None and family.is_marginal)
        if summed is None:
            return False
        site["value"], infer["prior"], self.edges[site["name"]] = summed
        site["is_observed"] = True
        return True

    def _count_reader(self, site: Site) -> None:
        """Add the name of a site to the readers of the alignments above it."""
        # the steps of a Markov chain take turns in using a dimension
        self.alignments.pop(site["infer"].get("_enumerate_dim", 0), None)
        plates = len(site["fn"].batch_shape)
        if site["is_observed"]:
            plates = max(plates, site["value"].dim() - site["fn"].event_dim)
        for alignment in self.alignments.values():
            if plates >= -alignment.dim:
                alignment.readers.append(site["name"])

    def _add_alignment(self, site: Site, fn: AlignmentDistribution, dim: int) -> None:
        """Hold an alignment that is enumerated, for the likelihoods below, and record the size of its support."""
        with torch.no_grad():
            log_prob = fn.log_prob(site["value"])
        evidence = getattr(site["infer"].get("family"), "is_marginal", False)
        self.alignments[dim] = EnumeratedAlignment(fn.is_possible(site["value"]), dim, log_prob, evidence, [])
        if fn.is_sparse:
            counted = torch.as_tensor(True if site["mask"] is None else site["mask"])
            counted = counted.to(fn.log_weights.device).expand(fn.batch_shape)
            total = counted.sum().clamp(min=1)
            self.sizes[site["name"]] = fn.support_size.where(counted, 0).sum() / total
            self.cuts[site["name"]] = (fn.is_cut & counted).sum() / total

    def _alignments_above(self, site: Site) -> AlignmentsAbove:
        scale = site["scale"]
        one_scale = not isinstance(scale, Tensor) or not scale.dim()
        return AlignmentsAbove(
            enumerated=list(self.alignments.values()),
            edges=self.edges,
            mask=site["mask"],
            is_only_sum=one_scale and self.alignments.keys() == {self.first_available_dim},
            roulette=self.roulette,
        )

    def check_edges(self) -> None:
        """Raise ValueError where nothing was observed at the edges that are summed over."""
        for name, edges in self.edges.items():
            if not edges.is_used:
                raise ValueError(
                    f"site '{name}': its edges are summed over, but nothing is observed of them; observe the nodes by "
                    f"NodeLikelihood(distribution, output) with the output of this attention, not of another below it"
                )

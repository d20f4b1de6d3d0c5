"""Which instances a request may use at all: its version, and where its tenant allows it to run."""

from lab.sim.cluster import Cluster, InstanceSpec
from lab.sim.workload import Submission


class Eligibility:
    """Answers from the cluster and its tenants; answers are kept, for there are few different ones."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str | None], tuple[str, ...]] = {}

    def excluded(self, submission: Submission) -> tuple[str, ...]:
        """The instances a request may not use."""
        key = (submission.tenant if self._cluster.tenants else "", submission.version)
        excluded = self._known.get(key)
        if excluded is None:
            excluded = self._known[key] = tuple(
                spec.name for spec in self._cluster.instances if not self.allowed(submission, spec)
            )
        return excluded

    def allowed(self, submission: Submission, instance: InstanceSpec) -> bool:
        """Whether a request may use an instance."""
        if submission.version is not None and submission.version != instance.version:
            return False
        return self.may_run(submission, instance)

    def may_run(self, submission: Submission, instance: InstanceSpec) -> bool:
        """Whether a request may run where an instance is: by the facts, not by the rule that deciders ask."""
        tenant = self._cluster.tenants.get(submission.tenant)
        if tenant is None:
            return True
        if tenant.sites is not None and instance.site not in tenant.sites:
            return False
        return tenant.regions is None or instance.region in tenant.regions

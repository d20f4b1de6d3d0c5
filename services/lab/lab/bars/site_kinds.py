"""The kinds of bars that are about several sites."""

from collections.abc import Mapping

from lab.bars.kinds import BarBase
from lab.bars.model import ATTAINMENT, BY_ITSELF, OURS, Measurements, Needed, Verdict
from lab.results.writing import percent
from lab.scenarios.load import load_scenario


class Fewer(BarBase, frozen=True, kw_only=True):
    """Pooled sites attain a share with so many fewer instances than sites that each serve their own.

    `larger` is the same requests on more instances. Where the sites by themselves still attain less than that share there,
    they need one instance more at least.
    """

    larger: str
    attained: float
    share: float

    @property
    def needs(self) -> Mapping[str, Needed]:
        return {self.scenario: Needed(frozenset({OURS})), self.larger: Needed(frozenset({BY_ITSELF}))}

    def judge(self, measurements: Measurements) -> list[Verdict]:
        pooled = ATTAINMENT.value(measurements[self.scenario].policies[OURS])
        apart = ATTAINMENT.value(measurements[self.larger].policies[BY_ITSELF])
        instances, too_few = _instances(self.scenario), _instances(self.larger)
        fewer = 1 - instances / (too_few + 1)
        enough = pooled is not None and pooled >= self.attained
        still_too_few = apart is not None and apart < self.attained
        return [
            Verdict(
                scenario=self.scenario,
                bar=f"instances for {percent(self.attained)}, sites pooled and each for itself",
                needed=f"at least {percent(self.share)} fewer",
                measured=f"{instances} attain {percent(pooled)}; {too_few} each for itself {percent(apart)}: "
                f"{percent(fewer)} fewer",
                passed=enough and still_too_few and fewer >= self.share,
                source=self.source,
            )
        ]


def _instances(scenario: str) -> int:
    return sum(pool.instances for pool in load_scenario(scenario).pools)

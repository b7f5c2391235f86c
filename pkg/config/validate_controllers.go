package config

import (
	"fmt"
	"slices"
)

// maxProfiles bounds the number of profiles, because the scheduler has an instance of its plugins
// for each profile.
const maxProfiles = 8

// scheduler validates the profiles as the scheduler does (pkg/scheduler/apis/config/validation).
func (v clusterValidator) scheduler(path string, profiles []SchedulerProfile) {
	if len(profiles) > maxProfiles {
		v.on(path, wrong{reason: fmt.Sprintf("%d profiles", len(profiles)), expected: fmt.Sprintf("at most %d", maxProfiles)})
	}
	names := map[string]int{}
	for i := range profiles {
		at, p := fmt.Sprintf("%s[%d]", path, i), &profiles[i]
		if err := hostname(p.Name); err != nil && p.Name != "" {
			v.on(at+".name", wrong{reason: fmt.Sprintf("%s %v", quote(p.Name), err), expected: "a DNS name in lower case, such as " + DefaultScheduler})
		}
		v.unique(at+".name", "profiles", p.Name, i, names)
		v.scoring(at+".scoring", &p.Scoring)
		plugins := map[string]int{}
		for k, w := range p.Weights {
			place := fmt.Sprintf("%s.weights[%d].plugin", at, k)
			v.unique(place, "weights", string(w.Plugin), k, plugins)
		}
		v.topologySpread(at+".topologySpread", p.TopologySpread)
	}
	if _, found := names[DefaultScheduler]; len(profiles) > 0 && !found {
		v.on(path, wrong{reason: "no profile is for pods without a schedulerName, which would never be scheduled", expected: "a profile with the name " + DefaultScheduler})
	}
}

func (v clusterValidator) scoring(path string, s *Scoring) {
	names := map[string]int{}
	for i, r := range s.Resources {
		at := fmt.Sprintf("%s.resources[%d].name", path, i)
		if err := qualifiedName(r.Name); err != nil && r.Name != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s %v", quote(r.Name), err), expected: "the name of a resource, such as cpu or example.com/gpu"})
		}
		v.unique(at, "resources", r.Name, i, names)
	}
	const ratio = RequestedToCapacityRatio
	switch {
	case s.Strategy == ratio && len(s.Shape) == 0:
		v.on(path+".shape", wrong{reason: fmt.Sprintf("the strategy %s has no points", ratio), expected: "points with utilization and score"})
	case s.Strategy != ratio && len(s.Shape) > 0:
		v.on(path+".shape", wrong{reason: fmt.Sprintf("has no effect with the strategy %s", s.Strategy), expected: fmt.Sprintf("strategy: %s beside it", ratio)})
	}
	for i := 1; i < len(s.Shape); i++ {
		if s.Shape[i-1].Utilization >= s.Shape[i].Utilization {
			v.on(fmt.Sprintf("%s.shape[%d].utilization", path, i), wrong{reason: "is not more than that of the point before", expected: "points with rising utilization"})
		}
	}
}

func (v clusterValidator) topologySpread(path string, all []SpreadConstraint) {
	for i, c := range all {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := qualifiedName(c.TopologyKey); err != nil && c.TopologyKey != "" {
			v.on(at+".topologyKey", wrong{reason: fmt.Sprintf("%s %v", quote(c.TopologyKey), err), expected: labelKey})
		}
		same := func(o SpreadConstraint) bool {
			return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
		}
		if j := slices.IndexFunc(all[:i], same); j >= 0 && c.TopologyKey != "" {
			v.on(at, wrong{reason: fmt.Sprintf("has the key and whenUnsatisfiable of topologySpread[%d]", j), expected: "each pair once"})
		}
	}
}

package health

import (
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Trial is the state of a machine whose version is on trial, beside Machine.
type Trial struct {
	Machine Machine
	// StorageProblem is the reason for which STATE is absent: the former version had STATE, or no
	// upgrade would have been possible.
	StorageProblem string
	Stored         bool // STATE has a configuration
}

// FailedCheck returns the first failed check of a version on trial; "" if all passed. Without a
// configuration the management API is the only check, because a client can apply a configuration
// over it; with a configuration all checks of `orlopctl health` count.
func FailedCheck(t Trial) string {
	c := t.Machine.Config
	switch {
	case t.StorageProblem != "":
		return "storage: " + t.StorageProblem
	case t.Stored && c == nil:
		return "configuration: the stored one is unusable"
	case c == nil || c.Cluster == nil:
		if supervise.Find(t.Machine.Services, nodespec.ServiceApid).State != supervise.Running {
			return "management API: not answering yet"
		}
		return ""
	}
	for _, c := range Of(t.Machine).Checks {
		if !c.Ok && !isUserProblem(c) {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// isUserProblem reports whether objects of users cause a failed check: the version is not at fault,
// and an upgrade that fixes the problem must be possible.
func isUserProblem(c *api.HealthCheck) bool {
	return strings.HasPrefix(c.Detail, nodespec.ProblemPrefix) && slices.Contains([]string{"bootstrap", "metrics", nodespec.Extensions}, c.Name)
}

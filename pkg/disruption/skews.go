package disruption

import (
	"cmp"
	"fmt"
	"slices"
)

// Skew is a machine with a version of Kubernetes that is not supported together with the versions
// of other machines.
type Skew struct {
	Machine        Node
	Reason, Remedy string
}

// Skews returns the machines with an unsupported version, in the order of the nodes. The API server
// of a control-plane machine has the version of its kubelet. Nodes with an unknown version are
// ignored.
func Skews(nodes []Node) []Skew {
	known := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return minorOf(n.Version) < 0 })
	planes := slices.DeleteFunc(slices.Clone(known), func(n Node) bool { return !n.ControlPlane })
	if len(planes) == 0 {
		return nil
	}
	byMinor := func(a, b Node) int { return cmp.Compare(minorOf(a.Version), minorOf(b.Version)) }
	oldest, newest := slices.MinFunc(planes, byMinor), slices.MaxFunc(planes, byMinor)
	var all []Skew
	for _, n := range known {
		minor := minorOf(n.Version)
		add := func(reason, remedy string) { all = append(all, Skew{Machine: n, Reason: reason, Remedy: remedy}) }
		upgrade := fmt.Sprintf("upgrade it (`orlopctl upgrade -n %s --from-peer %s`)", n.Address, newest.Address)
		switch lag := minorOf(newest.Version) - minor; {
		case n.ControlPlane && lag > maxServerSkew:
			add(fmt.Sprintf("its API server (Kubernetes %s) is %d minor versions older than that of %s (%s), and %d is supported", n.Version, lag, newest.Name, newest.Version, maxServerSkew), upgrade)
		case n.ControlPlane:
		case minor > minorOf(oldest.Version):
			add(fmt.Sprintf("its kubelet (Kubernetes %s) is newer than the API server of %s (%s)", n.Version, oldest.Name, oldest.Version),
				fmt.Sprintf("upgrade %s (`orlopctl upgrade -n %s`), or roll this machine back (`orlopctl rollback -n %s`)", oldest.Name, oldest.Address, n.Address))
		case lag > maxKubeletSkew:
			add(fmt.Sprintf("its kubelet (Kubernetes %s) is %d minor versions older than the API server of %s (%s), and %d are supported", n.Version, lag, newest.Name, newest.Version, maxKubeletSkew), upgrade)
		}
	}
	return all
}

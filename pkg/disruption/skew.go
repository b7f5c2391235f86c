package disruption

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
)

// The version skew that Kubernetes supports (https://kubernetes.io/releases/version-skew-policy):
// a kubelet is not newer than an API server, and at most maxKubeletSkew minor versions older. API
// servers differ by at most maxServerSkew minor versions.
const (
	maxKubeletSkew = 3
	maxServerSkew  = 1
)

// minorOf returns the minor number of a version, such as 36 for v1.36.3; -1 if the version is
// invalid. The major version is ignored, because it is the same everywhere.
func minorOf(version string) int {
	_, minor, _ := strings.Cut(semver.MajorMinor(version), ".")
	if n, err := strconv.Atoi(minor); err == nil {
		return n
	}
	return -1
}

// effective returns the minor version of the API that a server provides. If the server emulates
// another version, this is the emulated version.
func (s Server) effective() int {
	if s.Emulated != "" {
		return minorOf(s.Emulated)
	}
	return minorOf(s.Version)
}

// checkSkew returns the reason why Kubernetes would not support the versions in the cluster after
// the operation; nil if they are supported.
func checkSkew(m Machine, r Request, v Versions) *Refusal {
	if !m.ControlPlane {
		return checkWorker(r, v)
	}
	refuse := func(reason, remedy string) *Refusal {
		return &Refusal{Operation: r.Operation, Reason: reason, Remedy: remedy}
	}
	if v.Problem != "" {
		if !m.Others {
			return nil
		}
		return refuse(unknownVersions(v.Problem), "try again when an API server answers")
	}
	target := minorOf(r.Kubernetes)
	for _, s := range v.Servers {
		if other := minorOf(s.Version); other >= 0 && (other-target > maxServerSkew || target-other > maxServerSkew) {
			return refuse(fmt.Sprintf("the API servers would differ by %d minor versions: %s runs Kubernetes %s, and this machine would run %s", max(other-target, target-other), s.Address, s.Version, r.Kubernetes),
				"change the versions of the control plane by one minor version at a time")
		}
	}
	for _, n := range v.Nodes {
		minor := minorOf(n.Version)
		switch {
		case n.ControlPlane || minor < 0: // its kubelet uses the API server of the same machine
		case minor > target:
			return refuse(fmt.Sprintf("the kubelet of worker %s (Kubernetes %s) would be newer than this API server (%s)", n.Name, n.Version, r.Kubernetes),
				fmt.Sprintf("roll the workers back first (`orlopctl rollback -n %s`), or if it is gone, remove it (`orlopctl nodes remove %s`)", n.Address, n.Name))
		case target-minor > maxKubeletSkew:
			return refuse(fmt.Sprintf("the kubelet of worker %s (Kubernetes %s) would be %d minor versions older than this API server (%s), and %d are supported", n.Name, n.Version, target-minor, r.Kubernetes, maxKubeletSkew),
				fmt.Sprintf("upgrade that worker first (`orlopctl upgrade -n %s`), or if it is gone, remove it (`orlopctl nodes remove %s`)", n.Address, n.Name))
		}
	}
	return nil
}

// checkWorker is checkSkew for a worker.
func checkWorker(r Request, v Versions) *Refusal {
	refuse := func(reason, remedy string) *Refusal {
		return &Refusal{Operation: r.Operation, Reason: reason, Remedy: remedy}
	}
	if v.Problem != "" {
		return refuse(unknownVersions(v.Problem), "try again when the API servers answer")
	}
	target := minorOf(r.Kubernetes)
	for _, s := range v.Servers {
		server := s.effective()
		switch {
		case server < 0:
			return refuse(unknownVersions(s.Address+": "+s.Problem), "start that machine, or remove it from Cluster.spec.controlPlanes")
		case target > server && minorOf(s.Version) >= target:
			return refuse(fmt.Sprintf("the kubelet (Kubernetes %s) would be newer than the API server of %s (%s, which emulates %s)", r.Kubernetes, s.Address, s.Version, s.Emulated),
				"upgrade all control-plane machines, and raise the level (`orlopctl upgrade finalize`)")
		case target > server:
			return refuse(fmt.Sprintf("the kubelet (Kubernetes %s) would be newer than the API server of %s (%s)", r.Kubernetes, s.Address, s.Version),
				fmt.Sprintf("upgrade the control plane first (`orlopctl upgrade -n %s`)", s.Address))
		case server-target > maxKubeletSkew:
			return refuse(fmt.Sprintf("the kubelet (Kubernetes %s) would be %d minor versions older than the API server of %s (%s), and %d are supported", r.Kubernetes, server-target, s.Address, s.Version, maxKubeletSkew),
				"use a newer version")
		}
	}
	return nil
}

func unknownVersions(problem string) string {
	return "the operation changes the minor version of Kubernetes, and the versions in the cluster are unknown: " + problem
}

// maxNamed is the maximum number of machines that Behind names.
const maxNamed = 5

// Behind returns a warning about the machines with an older Kubernetes than the newest in the
// cluster; empty if there are no such machines.
func Behind(nodes []Node) string {
	newest := ""
	for _, n := range nodes {
		if semver.Compare(n.Version, newest) > 0 {
			newest = n.Version
		}
	}
	var behind []string
	unsupported := false
	for _, n := range nodes {
		if !semver.IsValid(n.Version) || semver.Compare(n.Version, newest) >= 0 {
			continue
		}
		text := fmt.Sprintf("%s (%s)", n.Name, n.Version)
		if minorOf(newest)-minorOf(n.Version) > maxKubeletSkew {
			unsupported = true
			text = fmt.Sprintf("%s (%s, not supported)", n.Name, n.Version)
		}
		behind = append(behind, text)
	}
	if len(behind) == 0 {
		return ""
	}
	slices.Sort(behind)
	number := len(behind)
	if number > maxNamed {
		behind = append(behind[:maxNamed], fmt.Sprintf("%d more", number-maxNamed))
	}
	text := fmt.Sprintf("warning: %d of %d machines run an older Kubernetes than %s: %s", number, len(nodes), newest, strings.Join(behind, ", "))
	if unsupported {
		return text + "; upgrade the unsupported ones now"
	}
	return text + "; upgrade them"
}

package transition

import (
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
)

// judgment says whether a change of a field can cut off the caller or stop the machine, and why.
type judgment struct {
	field  string // path in the form of config.Changes; the judgment includes the fields below it
	cuts   bool
	reason string
}

// judgments is the table of all fields. The row with the longest path that contains a field
// decides. A field without a row counts as a cut-off, and TestEveryFieldIsJudged fails. A new field
// needs a row in this table.
var judgments = []judgment{
	{"Machine.metadata.name", true, "the certificate of the management API and the DHCP client have this name"},
	{"Machine.spec.role", false, "the management API is the same for both roles, and a machine of a cluster cannot change its role"},
	{"Machine.spec.trust", true, "the management API admits only callers of these CAs"},
	{"Machine.spec.reserved", false, "the machine limits it to half of its memory, and it protects the system from pods"},
	{"Machine.spec.sysctls", true, "a value can stop connections, memory or processes of the whole machine"},
	{"Machine.spec.kernelModules", true, "a module can replace a driver or stop the kernel"},
	{"Machine.spec.disk", false, "it matters only on a machine without storage, and when the machine formats a partition"},
	{"Machine.spec.install", false, "an installed machine does not use it"},
	{"Machine.spec.join", false, "only the membership of a worker in its cluster depends on it"},
	{"Machine.spec.node", false, "only the placement of pods, and the images of new containers, depend on it"},
	{"Machine.spec.upgrade", false, "only upgrades depend on it, which have a trial of their own"},
	{"Machine.spec.extensions", false, "it takes effect at the next boot"},
	{"Machine.spec.egress", false, "only connections of the machine to servers outside the cluster depend on it"},
	{"Machine.spec.registries", false, "only images of pods depend on it"},
	{"Machine.spec.logging", false, "the shipping of logs neither blocks a call nor fills the disk"},
	{"Machine.spec.metrics", false, "the port of the metrics is another, and its process has no access to the management API"},

	{"Network.metadata", false, "no setting depends on the name"},
	{"Network.spec.links", true, "the addresses and routes of the machine follow from it"},
	{"Network.spec.routes", true, "a route can lead the answers to the caller elsewhere"},
	{"Network.spec.rules", true, "a rule can select a table without a route to the caller"},
	{"Network.spec.firewall", true, "the firewall can reject the caller"},
	{"Network.spec.dns", false, "the management API resolves no name"},
	{"Network.spec.lldp", false, "it only sends frames to the neighbors"},
	{"Network.spec.bgp", false, "only addresses of Services and the Kubernetes API depend on it"},
	// A trial would not help: it would end before the new servers set the clock.
	{"Network.spec.ntp", false, "only servers that agree, or are authenticated, step the clock (docs/decisions/0060-time.md)"},

	{"Cluster.metadata", false, "a machine of a cluster cannot change it"},
	{"Cluster.spec.endpoint", true, "a caller can use this address, and the machine's certificate contains it"},
	{"Cluster.spec.controlPlanes", true, "the machine's certificate contains these addresses, and the firewall admits them"},
	{"Cluster.spec.virtualAddresses", true, "the machine takes over these addresses"},
	{"Cluster.spec.joinRequests", false, "only machines that request to join depend on it"},
	{"Cluster.spec.networks", false, "ranges and addresses of pods and Services cannot contain an address of a machine"},
	{"Cluster.spec.external", false, "the replaced component serves pods, not the management API"},
	{"Cluster.spec.dns", false, "the management API resolves no name"},
	{"Cluster.spec.pki", false, "only components of Kubernetes use these CAs, and the machine rejects a change in one step"},
	{"Cluster.spec.pki.machine", true, "the certificate of the management API is of this CA"},
	{"Cluster.spec.pki.client", true, "the management API admits callers of this CA"},
	{"Cluster.spec.pki.accepted.machine", true, "the management API admits machines of these CAs, which relay callers"},
	{"Cluster.spec.pki.accepted.client", true, "the management API admits callers of these CAs"},
	{"Cluster.spec.secretsEncryptionKey", false, "only Secrets depend on it, and it cannot be on trial"},
	{"Cluster.spec.acceptedEncryptionKeys", false, "only Secrets depend on it, and it cannot be on trial"},
	{"Cluster.spec.etcd", false, "only snapshots depend on it"},
	{"Cluster.spec.localVolumes", false, "only volumes of pods depend on it"},
	{"Cluster.spec.podCertificates", false, "only pods depend on it"},
	{"Cluster.spec.kubernetes", false, "the management API works without Kubernetes"},

	{"Volume", false, "the management API needs no other disk than the system disk"},

	{"Addon", false, "the management API works without Kubernetes"},
}

// unjudged is the judgment of a field without a row.
var unjudged = judgment{cuts: true, reason: "its effect is unknown"}

// judge returns the judgment for a line of config.Changes.
func judge(line string) judgment {
	path, _, _ := strings.Cut(line, ": ")
	best := unjudged
	for _, row := range judgments {
		rest, is := strings.CutPrefix(path, row.field)
		if is && (rest == "" || strings.ContainsRune(".[", rune(rest[0]))) && len(row.field) > len(best.field) {
			best = row
		}
	}
	return best
}

// cutOffChanges returns the changes between two configurations that can cut off the caller, in the
// form of config.Changes. It returns nil if before is nil.
func cutOffChanges(before, next *config.Config) []string {
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(config.Changes(before, next), func(line string) bool { return !judge(line).cuts })
}

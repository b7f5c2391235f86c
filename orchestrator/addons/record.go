package addons

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// recordLabel is on the ConfigMaps of this package in Namespace. Each has the name of its add-on.
const recordLabel = "orlop.dev/addon-record"

// Record is the stored state of an add-on beyond its document and its objects.
type Record struct {
	// all objects that the add-on may have created and that still exist
	Inventory []Item `json:"inventory"`
	// the machine of the documents that were applied last
	Node string `json:"node"`
	// the digest of the last manifests that were applied completely, or empty
	Finished string `json:"finished,omitempty"`
	Running  string `json:"running,omitempty"` // the digest of the manifests with running hooks
	// the hooks of Running that have run, as Item.String
	Done []string `json:"done,omitempty"`
	// objects that are not created again when they are gone
	Ran      []CompletedHook  `json:"ran,omitempty"`
	Orphaned []OrphanedObject `json:"kept,omitempty"` // objects that are no longer wanted, and stay
	// the manifests that were rolled back, if the document still has them
	RolledBack RolledBack `json:"withdrawn,omitzero"`
	Trial      Trial      `json:"trial,omitzero"` // of the manifests that are being applied
}

// OrphanedObject is an object that was not deleted when it was no longer wanted.
type OrphanedObject struct {
	Object string `json:"object"` // as Item.String
	Reason string `json:"reason"`
}

// Phase is the phase of an add-on.
type Phase string

const (
	Applying Phase = "Applying" // not all objects exist and are healthy yet
	Ready    Phase = "Ready"
	Failed   Phase = "Failed"  // an object was rejected, or cannot become healthy without a change
	Pruning  Phase = "Pruning" // its document was removed, and its objects are deleted
)

// State is the state of an add-on that users see.
type State struct {
	Phase    Phase
	Since    time.Time // start of the phase
	Objects  int       // wanted objects
	Healthy  int       // wanted objects that are healthy
	Rights   []string
	Problems []string // the first maxProblems
	Notes    []string // objects that are not applied, or not deleted, on purpose
}

// Line returns the state in a line.
func (s State) Line() string {
	line := fmt.Sprintf("%s, %d of %d objects healthy", s.Phase, s.Healthy, s.Objects)
	if s.Phase == Pruning {
		line = fmt.Sprintf("%s, %d objects left", s.Phase, s.Objects)
	}
	if len(s.Problems) > 0 {
		line += ": " + s.Problems[0]
	}
	return line
}

// maxProblems is the number of problems that the state of an add-on contains, maxText the length of
// each.
const (
	maxProblems = 5
	maxText     = 400
)

// shorten applies maxProblems and maxText to a list of problems.
func shorten(problems []string) []string {
	var all []string
	for i, p := range problems {
		if i == maxProblems {
			return append(all, fmt.Sprintf("and %d more", len(problems)-i))
		}
		if p = oneLine(p); len(p) > maxText {
			p = strings.ToValidUTF8(p[:maxText], "") + "…"
		}
		all = append(all, p)
	}
	return all
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// describeRights returns the rights of an add-on in words, a rule per line.
func describeRights(a nodespec.Addon) []string {
	where := "in the whole cluster"
	if len(a.Namespaces) > 0 {
		where = "in " + strings.Join(a.Namespaces, ", ")
	}
	var all []string
	if a.Rights.ClusterAdmin {
		all = append(all, "everything (cluster-admin)")
	}
	if a.Rights.NamespaceAdmin {
		all = append(all, "the role admin "+where)
	}
	for _, r := range a.Rights.Rules {
		verbs := strings.Join(r.Verbs, ", ")
		if len(r.NonResourceURLs) > 0 {
			all = append(all, verbs+" "+strings.Join(r.NonResourceURLs, ", "))
			continue
		}
		groups := slices.Clone(r.APIGroups)
		for i, g := range groups {
			if g == "" {
				groups[i] = "core"
			}
		}
		line := fmt.Sprintf("%s %s (%s) %s", verbs, strings.Join(r.Resources, ", "), strings.Join(groups, ", "), where)
		if len(r.ResourceNames) > 0 {
			line += ", only " + strings.Join(r.ResourceNames, ", ")
		}
		all = append(all, line)
	}
	return all
}

// The fields of a record's ConfigMap. All but the first are for users.
const (
	fieldRecord   = "record.json"
	fieldPhase    = "phase"
	fieldSince    = "since"
	fieldObjects  = "objects"
	fieldRights   = "rights"
	fieldProblems = "problems"
	fieldNotes    = "notes"
)

// encode returns the ConfigMap of a record and a state.
func encode(name string, r Record, s State) (*corev1.ConfigMap, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("add-on %s: cannot encode its record: %w", name, err)
	}
	data := map[string]string{
		fieldRecord: string(text), fieldPhase: string(s.Phase), fieldSince: s.Since.UTC().Format(time.RFC3339),
		fieldObjects: fmt.Sprintf("%d of %d healthy", s.Healthy, s.Objects), fieldRights: joinLines(s.Rights),
	}
	if len(s.Problems) > 0 {
		data[fieldProblems] = joinLines(s.Problems)
	}
	if len(s.Notes) > 0 {
		data[fieldNotes] = joinLines(s.Notes)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{recordLabel: "true"}}, Data: data,
	}, nil
}

// The API server accepts at most 1 MiB in all fields of a ConfigMap together (ValidateConfigMap).
// The record has 832 KiB of that and each of the three fields of lines 60 KiB. The rest is for the
// other fields and for orphaned objects: an orphaned object takes a few bytes more than its entry
// in the inventory took.
const (
	maxRecord = 832 << 10
	maxLines  = 60 << 10
)

// maxSize returns the largest size, in bytes, that the record can reach with this inventory: with
// all hooks done.
func (r Record) maxSize(inventory []Item, wanted []Object) int {
	r.Inventory, r.Done, r.Ran = inventory, nil, nil
	for _, o := range wanted {
		if canRunOnce(o) {
			r.Ran = append(r.Ran, CompletedHook{o.String(), o.shortDigest(), strings.Repeat("x", maxFailed)})
		}
		if len(o.Hook.events) > 0 {
			r.Done = append(r.Done, o.String())
		}
	}
	text, _ := json.Marshal(r) // the encoding of strings does not fail
	return len(text)
}

// joinLines joins as many lines as fit into maxLines bytes, and appends the number of the others.
func joinLines(all []string) string {
	size := 0
	for i, line := range all {
		if size += len(line) + 1; size > maxLines {
			return strings.Join(append(slices.Clone(all[:i]), fmt.Sprintf("and %d more", len(all)-i)), "\n")
		}
	}
	return strings.Join(all, "\n")
}

// decode reads the record, the phase, its start and the rights from a ConfigMap that encode made.
func decode(m *corev1.ConfigMap) (Record, State, error) {
	var r Record
	if err := json.Unmarshal([]byte(m.Data[fieldRecord]), &r); err != nil {
		return Record{}, State{}, fmt.Errorf("ConfigMap %s/%s: cannot decode %s: %w", m.Namespace, m.Name, fieldRecord, err)
	}
	since, err := time.Parse(time.RFC3339, m.Data[fieldSince])
	if err != nil {
		since = time.Time{} // the phase begins now
	}
	s := State{Phase: Phase(m.Data[fieldPhase]), Since: since}
	if text := m.Data[fieldRights]; text != "" {
		s.Rights = strings.Split(text, "\n")
	}
	return r, s, nil
}

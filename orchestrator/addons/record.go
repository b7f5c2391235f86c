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

// Record is what has to be known of an add-on beyond its document and its objects.
type Record struct {
	// all objects that it may have made, and that are still there
	Inventory []Item `json:"inventory"`
	// the machine by whose documents it was applied last
	Node string `json:"node"`
	// the digest of the manifests that were applied to the end; empty: none yet
	Finished string `json:"finished,omitempty"`
	Running  string `json:"running,omitempty"` // the digest of those whose hooks run
	// the hooks of Running that have run, as Item.String
	Done []string `json:"done,omitempty"`
	// objects that are not made again when they are gone
	Ran      []CompletedHook  `json:"ran,omitempty"`
	Orphaned []OrphanedObject `json:"kept,omitempty"` // what was wanted once, and stays
	// the last manifests that were, if the document still has them
	RolledBack RolledBack `json:"withdrawn,omitzero"`
	Trial      Trial      `json:"trial,omitzero"` // of those that are being applied
}

// Orphaned is an object that was not taken away when it was no longer wanted.
type OrphanedObject struct {
	Object string `json:"object"` // as Item.String
	Reason string `json:"reason"`
}

// Phase is where an add-on is.
type Phase string

const (
	Applying Phase = "Applying" // not everything is there and healthy yet
	Ready    Phase = "Ready"
	Failed   Phase = "Failed"  // something was refused, or will not become healthy by itself
	Pruning  Phase = "Pruning" // its document is gone, and its objects go
)

// State is what people see of an add-on.
type State struct {
	Phase    Phase
	Since    time.Time // when it came into the phase
	Objects  int       // that are wanted now; of them
	Healthy  int
	Rights   []string
	Problems []string // the first of them
	Notes    []string // what was left out, or left behind, on purpose
}

// Line is the state in one line.
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

// mostProblems is how many problems are kept of an add-on, mostText how long each may be.
const (
	mostProblems = 5
	mostText     = 400
)

// shorten bounds what an add-on has to say.
func shorten(problems []string) []string {
	var all []string
	for i, p := range problems {
		if i == mostProblems {
			return append(all, fmt.Sprintf("and %d more", len(problems)-i))
		}
		if p = oneLine(p); len(p) > mostText {
			p = strings.ToValidUTF8(p[:mostText], "") + "…"
		}
		all = append(all, p)
	}
	return all
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// stated are an add-on's rights in words, a rule a line.
func stated(a nodespec.Addon) []string {
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

// The fields of a record's ConfigMap. All but the first are for people.
const (
	fieldRecord   = "record.json"
	fieldPhase    = "phase"
	fieldSince    = "since"
	fieldObjects  = "objects"
	fieldRights   = "rights"
	fieldProblems = "problems"
	fieldNotes    = "notes"
)

// encode is the ConfigMap of a record and a state.
func encode(name string, r Record, s State) (*corev1.ConfigMap, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("add-on %s: its record cannot be encoded: %w", name, err)
	}
	data := map[string]string{
		fieldRecord: string(text), fieldPhase: string(s.Phase), fieldSince: s.Since.UTC().Format(time.RFC3339),
		fieldObjects: fmt.Sprintf("%d of %d healthy", s.Healthy, s.Objects), fieldRights: lines(s.Rights),
	}
	if len(s.Problems) > 0 {
		data[fieldProblems] = lines(s.Problems)
	}
	if len(s.Notes) > 0 {
		data[fieldNotes] = lines(s.Notes)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{recordLabel: "true"}}, Data: data,
	}, nil
}

// The API server takes at most 1 MiB in the fields of a ConfigMap together (ValidateConfigMap). The
// record has 832 KiB of that, each of the three fields of lines 60 KiB, and the rest is for the
// others, and for what is kept: that takes a few bytes more than it took in the inventory.
const (
	mostRecord = 832 << 10
	mostLines  = 60 << 10
)

// most is how large the record can become, in bytes, while so much is in the inventory: with all
// hooks done.
func (r Record) most(inventory []Item, wanted []Object) int {
	r.Inventory, r.Done, r.Ran = inventory, nil, nil
	for _, o := range wanted {
		if job := o.Group == "batch" && o.Kind == "Job"; job || o.Group == "" && o.Kind == "Pod" || o.Body.GetAnnotations()[onceAnnotation] == once {
			r.Ran = append(r.Ran, CompletedHook{o.String(), o.short(), strings.Repeat("x", mostFailed)})
		}
		if len(o.Hook.events) > 0 {
			r.Done = append(r.Done, o.String())
		}
	}
	text, _ := json.Marshal(r) // strings are always encoded
	return len(text)
}

// lines is a line for each, as many as have room.
func lines(all []string) string {
	size := 0
	for i, line := range all {
		if size += len(line) + 1; size > mostLines {
			return strings.Join(append(slices.Clone(all[:i]), fmt.Sprintf("and %d more", len(all)-i)), "\n")
		}
	}
	return strings.Join(all, "\n")
}

// decode reads what encode has written, as far as it is needed again.
func decode(m *corev1.ConfigMap) (Record, State, error) {
	var r Record
	if err := json.Unmarshal([]byte(m.Data[fieldRecord]), &r); err != nil {
		return Record{}, State{}, fmt.Errorf("ConfigMap %s/%s: %s cannot be decoded: %w", m.Namespace, m.Name, fieldRecord, err)
	}
	since, err := time.Parse(time.RFC3339, m.Data[fieldSince])
	if err != nil {
		since = time.Time{} // the phase begins anew
	}
	s := State{Phase: Phase(m.Data[fieldPhase]), Since: since}
	if text := m.Data[fieldRights]; text != "" {
		s.Rights = strings.Split(text, "\n")
	}
	return r, s, nil
}

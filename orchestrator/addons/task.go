package addons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// task is what is to be done about one add-on.
type task struct {
	name   string
	addon  *nodespec.Addon // nil: its document is gone
	wanted Wanted
	record Record
	stored *corev1.ConfigMap // nil: there is none yet
	state  State             // as it was
	held   string            // why nothing is done about it
	// gone are the document's manifests, when wanted are those from before them.
	gone RolledBack
	// lost are items whose namespaces are gone, and they with them.
	lost map[key]bool
	// unreadable: what is stored cannot be decoded. It is left as it is, because it holds the
	// inventory.
	unreadable bool
}

// due looks at the add-ons that are due, or at all of them. One whose record is refused is told at
// the end, and keeps no other from being looked at; it is due again in the next round.
func (m *manager) due(ctx context.Context, now time.Time, all bool) error {
	if len(m.all) == 0 {
		_, err := m.client.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // there never was one
			m.changed = false
			return nil
		}
		if err != nil {
			return fmt.Errorf("namespace %s: cannot be read: %w", Namespace, err)
		}
	} else if err := ensureNamespace(ctx, m.client, Namespace); err != nil {
		return err
	}
	tasks, err := m.tasks(ctx, now)
	if err != nil {
		return err
	}
	given, trouble, err := m.give(ctx, tasks)
	if err != nil {
		return err
	}
	for name := range m.memories {
		if !slices.ContainsFunc(tasks, func(t *task) bool { return t.name == name }) {
			delete(m.memories, name)
		}
	}
	var failed error
	for _, t := range tasks {
		k, err := m.keep(t)
		if err != nil {
			return err
		}
		if given[t.name] {
			k.granted = now
		}
		if all {
			k.tries = 0
		} else if now.Before(k.next) {
			continue
		}
		err = m.look(ctx, t, k, now, trouble[t.name])
		if errors.Is(err, errAway) {
			return err
		}
		if err != nil {
			k.next = time.Time{}
			failed = cmp.Or(failed, err)
		}
	}
	m.changed = false
	return failed
}

// keep is what is remembered of an add-on.
func (m *manager) keep(t *task) (*remembered, error) {
	if k := m.memories[t.name]; k != nil {
		return k, nil
	}
	as, err := actAs(m.config, t.name, "orlop-addon/"+t.name, m.kinds)
	if err != nil {
		return nil, err
	}
	by, err := actAs(m.config, remover(t.name), "", m.kinds)
	if err != nil {
		return nil, err
	}
	k := &remembered{keeper: keeper{name: t.name, as: as, remover: by, applied: map[key]mark{}}, state: t.state}
	m.memories[t.name] = k
	return k, nil
}

// tasks are those of all add-ons that there are, or were.
func (m *manager) tasks(ctx context.Context, now time.Time) ([]*task, error) {
	records, err := m.client.CoreV1().ConfigMaps(Namespace).List(ctx, metav1.ListOptions{LabelSelector: recordLabel})
	if apierrors.IsForbidden(err) { // the first time: the right is given below
		records, err = &corev1.ConfigMapList{}, m.settle(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("records of add-ons: cannot be read: %w", err)
	}
	byName := map[string]*task{}
	var all []*task
	for i := range records.Items {
		t := &task{name: records.Items[i].Name, stored: &records.Items[i]}
		if t.record, t.state, err = decode(t.stored); err != nil {
			t.unreadable = true
			t.held = fmt.Sprintf("%v; nothing is done about it until that is put right (kubectl -n %s edit configmap %s) or the ConfigMap is deleted, "+
				"which begins it anew: its hooks run again, and what its document does not want any more stays", err, Namespace, t.name)
		}
		byName[t.name] = t
		all = append(all, t)
	}
	anew := m.unknown() && m.kinds.refresh(now)
	for i := range m.all {
		a := &m.all[i]
		t := byName[a.Name]
		if t == nil {
			t = &task{name: a.Name}
			all = append(all, t)
		}
		t.addon = a
		if t.wanted, err = m.want(*a, anew); err != nil {
			return nil, err
		}
		if err := m.choose(ctx, t, now); err != nil {
			return nil, err
		}
	}
	for _, t := range all {
		if t.addon == nil && !t.unreadable {
			if t.held, err = m.hold(ctx, t.record); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// unknown tells whether anything of what is wanted, now or from before, is of a kind that was
// unknown when it was read.
func (m *manager) unknown() bool {
	for _, w := range m.wanted {
		if len(w.Unknown) > 0 {
			return true
		}
	}
	for _, c := range m.copies {
		if len(c.wanted.Unknown) > 0 {
			return true
		}
	}
	return false
}

// want is what an add-on wants. It is read once for each content of the file, and anew while it has
// kinds that are unknown, or an artefact that cannot be read. Without its artefact nothing is known
// of it, so that it stays as it is.
func (m *manager) want(a nodespec.Addon, anew bool) (Wanted, error) {
	if w, before := m.wanted[a.Name]; before && (len(w.Unknown) == 0 || !anew) {
		return w, nil
	}
	files, err := m.files(a)
	if err != nil {
		return Wanted{Refused: []string{"artifact: " + err.Error()}}, nil
	}
	m.kinds.failed = nil
	w := Read(a, files, m.kinds.of)
	if m.kinds.failed != nil {
		return w, fmt.Errorf("kinds of the API server: %w", m.kinds.failed)
	}
	why, err := m.tooOld(a)
	if err != nil {
		return w, err
	}
	if why != "" {
		w.Refused = append([]string{why}, w.Refused...)
	}
	m.wanted[a.Name] = w
	return w, nil
}

// files are those of an add-on's artefact.
func (m *manager) files(a nodespec.Addon) ([]artifact.Text, error) {
	switch {
	case a.Artifact == (nodespec.Artifact{}):
		return nil, nil
	case a.Artifact.Missing != "":
		return nil, errors.New(a.Artifact.Missing)
	}
	files, err := m.artifacts.Texts(a.Artifact.SHA256)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Artifact.Name, err)
	}
	return files, nil
}

// errSettling says that what this package needs itself is being given.
var errSettling = errors.New("the rights to keep records are being given")

// settle gives this package's own identity what it needs in Namespace.
func (m *manager) settle(ctx context.Context) error {
	want, err := present(ctx, m.client)
	if err != nil {
		return err
	}
	own := granting([]Grant{home()})
	maps.Copy(want.roles, own.roles)
	maps.Copy(want.bindings, own.bindings)
	_, failed, err := grant(ctx, m.client, want)
	for _, refused := range failed {
		err = refused
	}
	if err != nil {
		return err
	}
	return errSettling
}

// tooOld says why an add-on needs another API server; empty when it does not.
func (m *manager) tooOld(a nodespec.Addon) (string, error) {
	if a.Kubernetes == "" {
		return "", nil
	}
	info, err := m.client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	have, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	least, err := version.ParseGeneric(a.Kubernetes)
	if err != nil {
		return "", fmt.Errorf("add-on %s: the version that it needs: %w", a.Name, err)
	}
	if have.AtLeast(least) {
		return "", nil
	}
	return fmt.Sprintf("needs Kubernetes >=%s, the API server is %s; nothing of it is applied", a.Kubernetes, info.GitVersion), nil
}

// hold says why an add-on is left as it is although its document is gone: another machine's
// documents had it, and that machine's may have it still. Machines are given their documents one by
// one, and who leads changes meanwhile.
func (m *manager) hold(ctx context.Context, r Record) (string, error) {
	if !leaderelection.NeedsElection(m.spec) || r.Node == m.spec.NodeName || r.Node == "" {
		return "", nil
	}
	_, err := m.client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("Node %s: cannot be read: %w", r.Node, err)
	}
	return fmt.Sprintf("%s has applied it, and the configuration of %s, whose controllers work now, does not have it; "+
		"apply the same add-ons on all control-plane machines, and to remove this one, add it to %s and take it away again",
		r.Node, m.spec.NodeName, m.spec.NodeName), nil
}

// give gives the add-ons their rights, and takes away those that nobody needs any more. given are
// the add-ons that have been given something, trouble is what stands in the way of one add-on.
func (m *manager) give(ctx context.Context, tasks []*task) (given map[string]bool, trouble map[string]string, err error) {
	all := []Grant{home()}
	given, trouble = map[string]bool{}, map[string]string{}
	ofTask := map[string][]Grant{}
	for _, t := range tasks {
		if t.addon != nil && len(t.wanted.Refused) == 0 {
			for _, namespace := range t.namespaces() {
				if err := ensureNamespace(ctx, m.client, namespace); err != nil {
					trouble[t.name] = err.Error()
				}
			}
			if trouble[t.name] == "" {
				ofTask[t.name] = Rights(*t.addon)
			}
		}
		items, lost, err := m.reachable(ctx, t.leaving())
		if err != nil {
			return nil, nil, err
		}
		t.lost = lost
		ofTask[t.name] = append(ofTask[t.name], Removing(t.name, items)...)
		all = append(all, ofTask[t.name]...)
	}
	changed, failed, err := grant(ctx, m.client, granting(all))
	own := home()
	for _, t := range tasks {
		// by which it acts as any of them
		given[t.name] = changed[[2]string{own.Namespace, own.Name}]
		for _, g := range ofTask[t.name] {
			at := [2]string{g.Namespace, g.Name}
			given[t.name] = given[t.name] || changed[at]
			if why := failed[at]; why != nil {
				trouble[t.name] = why.Error()
			}
		}
	}
	return given, trouble, err
}

// namespaces are those that have to be there for an add-on, apart from those that are among its
// objects.
func (t *task) namespaces() []string {
	if len(t.addon.Namespaces) > 0 {
		return t.addon.Namespaces
	}
	own := slices.ContainsFunc(t.wanted.Objects, func(o Object) bool { return o.Group == "" && o.Kind == "Namespace" && o.Name == t.addon.Namespace })
	if own || t.addon.Namespace == metav1.NamespaceDefault {
		return nil
	}
	return []string{t.addon.Namespace}
}

// leaving are the items that an add-on has to take away: what is no longer wanted, and hooks that
// run again.
func (t *task) leaving() []Item {
	if t.held != "" || len(t.wanted.Refused) > 0 {
		return nil
	}
	var items []Item
	if len(t.wanted.Unknown) == 0 { // what is unknown may be what seems to be no longer wanted
		items = ToPrune(t.record.Inventory, t.wanted.Objects)
	}
	if t.record.Finished == t.wanted.Digest {
		return items
	}
	for _, o := range t.wanted.Objects {
		if len(o.Hook.events) > 0 && slices.ContainsFunc(t.record.Inventory, func(i Item) bool { return i.key() == o.key() }) {
			items = append(items, o.Item)
		}
	}
	return items
}

// reachable are the items whose namespaces are there. In others nobody can be given rights, and
// nothing is left: those items are lost.
func (m *manager) reachable(ctx context.Context, items []Item) (all []Item, lost map[key]bool, err error) {
	there := map[string]bool{"": true}
	lost = map[key]bool{}
	for _, i := range items {
		is, asked := there[i.Namespace]
		if !asked {
			_, err := m.client.CoreV1().Namespaces().Get(ctx, i.Namespace, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, nil, fmt.Errorf("namespace %s: cannot be read: %w", i.Namespace, err)
			}
			is = err == nil
			there[i.Namespace] = is
		}
		if is {
			all = append(all, i)
		} else {
			lost[i.key()] = true
		}
	}
	return all, lost, nil
}

// look has one add-on looked at, and writes what came of it.
func (m *manager) look(ctx context.Context, t *task, k *remembered, now time.Time, trouble string) error {
	r := t.record
	save := func(r Record) error { return m.store(ctx, t, r, k.state) }
	var out outcome
	var err error
	switch {
	case t.held != "":
		out.problems, out.objects = []string{t.held}, len(t.wanted.Objects)
	case trouble != "":
		out.problems = []string{trouble}
	default:
		if t.addon != nil {
			r.Node = m.spec.NodeName
		}
		stays := t.addon != nil && t.gone == (RolledBack{})
		k.returns = stays && t.addon.Within > 0
		r = r.without(t.lost)
		r, out, err = k.pass(ctx, t.wanted, r, now, save)
		if err == nil && stays {
			r, out = m.conclude(ctx, t, k, r, out, now)
		}
	}
	if t.gone != (RolledBack{}) {
		out.problems = append([]string{t.gone.said(t.name, out.there && err == nil)}, out.problems...)
	}
	if err != nil {
		if !errors.Is(err, errAway) {
			return err
		}
		out.problems = append(out.problems, err.Error())
	}
	// its rights are gone by now, too
	if t.addon == nil && len(t.record.Inventory) == 0 && !t.unreadable {
		return m.forget(ctx, t, r)
	}
	k.state = t.judge(out, r, k.state, now)
	if k.state.Phase == Ready {
		k.tries, k.next = 0, now.Add(healing)
	} else {
		k.tries++
		most := healing
		if len(out.problems) > 0 {
			most = backoff
		}
		k.next = now.Add(delay(k.tries, most))
	}
	if t.unreadable {
		return nil
	}
	return m.store(ctx, t, r, k.state)
}

// judge is the state of an add-on after a look at it.
func (t *task) judge(out outcome, r Record, before State, now time.Time) State {
	s := State{Phase: Ready, Objects: out.objects, Healthy: out.healthy, Rights: before.Rights, Problems: shorten(append(slices.Clone(out.problems), out.waits...))}
	switch {
	case len(out.problems) > 0:
		s.Phase = Failed
	case t.addon == nil:
		s.Phase = Pruning
	case len(out.waits) > 0:
		s.Phase = Applying
	}
	if t.addon == nil {
		s.Objects = len(r.Inventory)
	} else {
		s.Rights = stated(*t.addon)
	}
	s.Notes = append(slices.Clone(t.wanted.Notes), out.notes...)
	for _, kept := range r.Orphaned {
		s.Notes = append(s.Notes, kept.Object+": stays, because "+kept.Reason)
	}
	s.Since = now.UTC().Truncate(time.Second)
	if s.Phase == before.Phase {
		s.Since = before.Since
	}
	return s
}

// store writes the record and the state of an add-on, if they are others than before.
func (m *manager) store(ctx context.Context, t *task, r Record, s State) error {
	want, err := encode(t.name, r, s)
	if err != nil {
		return err
	}
	all := m.client.CoreV1().ConfigMaps(Namespace)
	if t.stored == nil {
		if t.stored, err = all.Create(ctx, want, metav1.CreateOptions{}); err != nil {
			t.stored = nil
			return fmt.Errorf("the record of the add-on %s: cannot be made: %w", t.name, marked(err))
		}
		return nil
	}
	if maps.Equal(t.stored.Data, want.Data) {
		return nil
	}
	want.ResourceVersion = t.stored.ResourceVersion
	stored, err := all.Update(ctx, want, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("the record of the add-on %s: cannot be written: %w", t.name, marked(err))
	}
	t.stored = stored
	return nil
}

// forget drops the record of an add-on of which nothing is left that is its own.
func (m *manager) forget(ctx context.Context, t *task, r Record) error {
	for _, kept := range r.Orphaned {
		klog.InfoS("What an add-on leaves behind", "addon", t.name, "object", kept.Object, "because", kept.Reason)
	}
	if t.stored != nil {
		if err := m.drop(ctx, t.name); err != nil {
			return err
		}
		err := m.client.CoreV1().ConfigMaps(Namespace).Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &t.stored.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("the record of the add-on %s: cannot be deleted: %w", t.name, marked(err))
		}
	}
	klog.InfoS("An add-on is gone", "addon", t.name)
	delete(m.memories, t.name)
	return nil
}

package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestReferenceIsComplete checks that the reference contains every field of every struct. The
// comment of a field must end with the effect of omitting the field, and a default in the comment
// must be the real default.
func TestReferenceIsComplete(t *testing.T) {
	comments := ReferenceComments()
	documented := map[string]bool{}
	for path := range comments {
		documented[path] = true
	}
	for _, k := range new(Config).kinds() {
		target := reflect.ValueOf(k.target()).Elem()
		setDefaults(target)
		if comments[k.name] == "" {
			t.Errorf("%s: the document has no comment", k.name)
		}
		delete(documented, k.name)
		walk(target, k.name, func(path string, f reflect.StructField, v reflect.Value) {
			delete(documented, path)
			if problem := judgeComment(comments[path], f, v); problem != "" {
				t.Errorf("%s: %s\n%s", path, problem, comments[path])
			}
		})
	}
	for path := range documented {
		t.Errorf("%s has a comment, but there is no such field", path)
	}
}

// walk calls visit for every field below a struct. Items of lists and targets of pointers have
// their defaults.
func walk(v reflect.Value, path string, visit func(string, reflect.StructField, reflect.Value)) {
	switch v.Kind() {
	case reflect.Slice, reflect.Pointer:
		if !isText(v.Type().Elem()) && v.Type().Elem().Kind() == reflect.Struct {
			item := reflect.New(v.Type().Elem()).Elem()
			setDefaults(item)
			walk(item, path, visit)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && !isText(v.Type()); i++ {
			f := v.Type().Field(i)
			at := path + "." + fieldName(f)
			visit(at, f, v.Field(i))
			walk(v.Field(i), at, visit)
		}
	}
}

// judgeComment returns a description of the error in a field's comment; "" if the comment is
// correct.
func judgeComment(comment string, f reflect.StructField, v reflect.Value) string {
	if comment == "" {
		return "not in the reference, or without a comment"
	}
	lines := strings.Split(comment, "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "# ")
	// A group has no default of its own, because its fields have defaults.
	group := v.Kind() == reflect.Struct && !isText(v.Type())
	told, hasDefault := strings.CutPrefix(last, "Default: ")
	required := f.Tag.Get("jsonschema") == "required"
	if problem := judgeLimits(comment, f); problem != "" {
		return problem
	}
	switch {
	case group:
		return ""
	case required && last != "Required.":
		return "the comment does not end with: Required."
	case !required && strings.HasPrefix(last, "Required"):
		if f.Type == reflect.TypeFor[Certificate]() || f.Type == reflect.TypeFor[PrivateKey]() || f.Type == reflect.TypeFor[EncryptionKey]() {
			return "" // depends on the role
		}
		return "the comment says that the field is required, but the field is optional"
	case !required && !hasDefault:
		return "the comment does not end with: Default: …"
	case required || isEmpty(v) && v.Kind() != reflect.Bool:
		return ""
	}
	real, err := yaml.Marshal(flow(printer{}.value(v, "")))
	if err != nil {
		return err.Error()
	}
	if got := strings.TrimSpace(string(real)); got != told {
		return fmt.Sprintf("the real default is %s", got)
	}
	return ""
}

// judgeLimits returns a description of the error in the tag limits of a field, or in the comment
// about these limits; "" if both are correct.
func judgeLimits(comment string, f reflect.StructField) string {
	tag, limited := f.Tag.Lookup("limits")
	if !limited {
		return ""
	}
	p := parseLimits(tag)
	if least, err := limit(p.least, f.Type); err != nil || !withinLimits(tag, reflect.ValueOf(least).Convert(f.Type)) {
		return fmt.Sprintf("the limits do not fit the type (%v)", err)
	}
	stated := []string{p.least + " to " + p.most}
	if p.unit != "" {
		stated = append(stated, "whole "+p.unit+",")
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(comment, "\n#", " ")), " ")
	for _, part := range stated {
		if !strings.Contains(text, part) {
			return "the comment does not state the limits: " + part
		}
	}
	return ""
}

func flow(n *yaml.Node) *yaml.Node {
	n.Style = yaml.FlowStyle
	return n
}

// TestReferenceIsStable checks that the reference has the same value after Marshal and Parse.
func TestReferenceIsStable(t *testing.T) {
	c := example(t)
	printed := Marshal(c)
	again, problems := Parse("printed", printed)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if changes := Changes(c, again); len(changes) > 0 {
		t.Errorf("Marshal and Parse change values: %q", changes)
	}
	if !bytes.Equal(printed, Marshal(again)) {
		t.Error("two outputs of Marshal differ")
	}
}

// TestOmittedMeansZero checks that Marshal omits a field only if its default is the zero value.
func TestOmittedMeansZero(t *testing.T) {
	for _, k := range new(Config).kinds() {
		target := reflect.ValueOf(k.target()).Elem()
		setDefaults(target)
		walk(target, k.name, func(path string, f reflect.StructField, v reflect.Value) {
			if strings.HasSuffix(f.Tag.Get("yaml"), ",omitempty") && !isEmpty(v) {
				t.Errorf("%s: omitempty, but the default is %v", path, v)
			}
			if name := fieldName(f); name == "" || strings.ToLower(name[:1]) != name[:1] || !strings.EqualFold(name, f.Name) {
				t.Errorf("%s: the name in the documents is not that of the field %s", path, f.Name)
			}
			if verbs := []string{"script", "exec", "command", "run"}; slices.Contains(verbs, fieldName(f)) {
				t.Errorf("%s: a configuration must not contain commands", path)
			}
		})
	}
}

func TestBuilders(t *testing.T) {
	ref := example(t)
	c := New("node-2", RoleControlPlane).
		WithOperatorCAs(ref.Machine.Spec.Trust.OperatorCAs...).
		WithCluster("c", Endpoint{Host: "10.0.0.5", Port: 6443}, ref.Cluster.Spec.PKI, ref.Cluster.Spec.SecretsEncryptionKey).
		WithNetwork(NetworkSpec{NTP: NTP{Servers: []string{"10.0.0.1"}}})
	if problems := Check(c); len(problems) > 0 {
		t.Fatal(problems)
	}
	parsed, problems := Parse("", Marshal(c))
	if len(problems) > 0 || !Equal(c, parsed) {
		t.Errorf("%v %v", problems, Changes(c, parsed))
	}
	if problems := Check(New("A", RoleWorker)); len(problems) != 1 || problems[0].Field != "Machine.metadata.name" || problems[0].Line == 0 {
		t.Errorf("got %v", problems)
	}
	pki := ref.Cluster.Spec.PKI
	pair, err := NewCertKey(pki.Etcd.Cert.PEM(), pki.Etcd.Key.PEM())
	if err != nil || !reflect.DeepEqual(pair, pki.Etcd) {
		t.Errorf("NewCertKey: %v, %v", pair, err)
	}
	if _, err := NewCertKey("x", pki.Etcd.Key.PEM()); err == nil {
		t.Error("NewCertKey accepts an invalid text")
	}
	if e, err := ParseEndpoint("https://h:7"); err != nil || e != (Endpoint{"h", 7}) {
		t.Errorf("ParseEndpoint: %v, %v", e, err)
	}
}

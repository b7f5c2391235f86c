package strictyaml

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

type pair struct {
	Cert string `json:"cert"`
	Key  []byte `json:"key"`
}

type file struct {
	Name  string          `json:"name"`
	Count int             `json:"count"`
	At    time.Time       `json:"at"`
	Pairs map[string]pair `json:"pairs"`
	List  []pair          `json:"list"`
}

func TestDecode(t *testing.T) {
	for name, text := range map[string]string{
		"YAML":                       "name: a\ncount: 2\nat: 2026-01-02T03:04:05Z\npairs: {1: {cert: c, key: aGk=}}\nlist: [{cert: d}]\n",
		"JSON":                       `{"name":"a","count":2,"at":"2026-01-02T03:04:05Z","pairs":{"1":{"cert":"c","key":"aGk="}},"list":[{"cert":"d"}]}`,
		"YAML with document markers": "---\nname: a\ncount: 2\nat: '2026-01-02T03:04:05Z'\npairs: {'1': {cert: c, key: aGk=}}\nlist: [{cert: d}]\n...\n",
	} {
		var f file
		if err := Decode([]byte(text), &f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := fmt.Sprintf("%s %d %d %s %s %v", f.Name, f.Count, f.At.Unix(), f.Pairs["1"].Cert, f.Pairs["1"].Key, f.List); got != "a 2 1767323045 c hi [{d []}]" {
			t.Errorf("%s: %s", name, got)
		}
	}
	f := file{Name: "before"}
	for _, text := range []string{"", "# a comment\n", "null"} {
		if err := Decode([]byte(text), &f); err != nil || f.Name != "before" {
			t.Errorf("%q: %v, %+v", text, err, f)
		}
	}
}

func TestRejected(t *testing.T) {
	for text, want := range map[string]string{
		"name: a\nname: b":                          "line 2: a field occurs twice",
		"name: a\n'name': a":                        "line 2: a field occurs twice",
		`{"name":"hunter2","name":"hunter2"}`:       "line 1: a field occurs twice",
		"pairs:\n  a: {cert: c}\n  a: {cert: d}":    "line 3: a field occurs twice",
		"list:\n- cert: c\n  cert: d":               "line 3: a field occurs twice",
		"nam: a":                                    `unknown field "nam"`,
		"Name: a":                                   `unknown field "Name"`,
		"pairs: {a: {crt: c}}":                      `unknown field "pairs.a.crt"`,
		"list: [{}, {crt: c}]":                      `unknown field "list[1].crt"`,
		"name: a\n---\nname: b":                     "line 2: a second document begins",
		"name: a\n---\n":                            "a second document begins",
		"name: &x a\nlist: [{cert: *x}]":            "line 2: an alias",
		"pairs:\n  <<: {a: {cert: c}}":              "line 2: expected the name of a field",
		"? [a]\n: b":                                "line 1: expected the name of a field",
		"name: [hunter2]":                           `field "name": is of the type array, expected string`,
		"count: hunter2":                            `field "count": is of the type string, expected int`,
		"count: 31337.5":                            `field "count": is of the type number, expected int`,
		"pairs: {a: {key: hunter2-is-not-base-64}}": "illegal base64",
		"- a":                  "is of the type array",
		"name: [":              "did not find expected",
		"name: a\n}":           "did not find expected",
		"count: !!int hunter2": "line 1: the value cannot be read",
	} {
		err := Decode([]byte(text), new(file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "31337") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestRepeated(t *testing.T) {
	for text, want := range map[string]int{
		"a: 1\nb: 2": 0, "a: {b: 1}\nc: {b: 1}": 0, "- a: 1\n- a: 1": 0, "a:\n- b: 1\n  c: 2\n  b: 3": 4, "a: &x k\n*x : 1\nk: 2": 3, "? {a: 1}\n: b\n? {a: 1}\n: c": 0,
	} {
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(text), &n); err != nil {
			t.Fatal(err)
		}
		if got := Repeated(&n); got != want {
			t.Errorf("%q: line %d, want %d", text, got, want)
		}
	}
}

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The counted words. The expressions match single words and ignore grammar. A reader often has to
// read a sentence twice if a counted word stands in place of a noun.
var (
	vague  = regexp.MustCompile(`(?i)\b(what|those|one|ones|such|something|anything|everything|thing|things)\b`)
	person = regexp.MustCompile(`(?i)\b(who|whoever|whom|whose|somebody|nobody|anybody|everybody|someone|anyone|everyone|he|she|him|his)\b`)
	word   = regexp.MustCompile(`[A-Za-z][A-Za-z'-]*`)
	// marker matches an instruction for a generator. The line of an instruction cannot be wrapped.
	marker = regexp.MustCompile(`(?m)^(// ?)?(\+kubebuilder|go:generate).*$`)
)

const (
	columns  = 100 // the widest comment line, in characters
	tabWidth = 4
)

// figures are the measured values of the source tree.
type figures struct {
	Comments  rates `json:"goComments"`
	Documents rates `json:"documents"`
	// Wide is the percentage of lines with comments that have more than 100 columns.
	Wide float64 `json:"wideCommentLinesPercent"`
}

// rates are the numbers of counted words per 1,000 words of text.
type rates struct {
	Vague   float64 `json:"vague"`
	Persons float64 `json:"persons"`
}

// compare returns a message for each figure that is higher than the recorded figure.
func (f figures) compare(recorded figures) (worse []string) {
	check := func(name string, now, limit float64) {
		if now > limit {
			worse = append(worse, fmt.Sprintf("%s: %.2f, recorded %.2f; rewrite the new sentences (go run ./hack/words -list DIR shows the places)", name, now, limit))
		}
	}
	check("vague pronouns per 1,000 words of Go comments", f.Comments.Vague, recorded.Comments.Vague)
	check("words for persons per 1,000 words of Go comments", f.Comments.Persons, recorded.Comments.Persons)
	check("vague pronouns per 1,000 words of documents", f.Documents.Vague, recorded.Documents.Vague)
	check("words for persons per 1,000 words of documents", f.Documents.Persons, recorded.Documents.Persons)
	check("percentage of comment lines over 100 columns", f.Wide, recorded.Wide)
	return worse
}

// lower returns the lower value of each figure.
func (f figures) lower(recorded figures) figures {
	return figures{
		Comments:  rates{min(f.Comments.Vague, recorded.Comments.Vague), min(f.Comments.Persons, recorded.Comments.Persons)},
		Documents: rates{min(f.Documents.Vague, recorded.Documents.Vague), min(f.Documents.Persons, recorded.Documents.Persons)},
		Wide:      min(f.Wide, recorded.Wide),
	}
}

// tally counts the words of a kind of text.
type tally struct{ words, vague, persons int }

func (t *tally) add(text string) (hits []string) {
	v, p := vague.FindAllString(text, -1), person.FindAllString(text, -1)
	t.words += len(word.FindAllString(text, -1))
	t.vague += len(v)
	t.persons += len(p)
	return append(v, p...)
}

// rates rounds up to hundredths. Rounded figures are therefore never below the measured figures.
func (t tally) rates() rates {
	per := func(n int) float64 { return ceil(1000*float64(n), float64(t.words)) }
	return rates{per(t.vague), per(t.persons)}
}

func ceil(n, d float64) float64 {
	if d == 0 {
		return 0
	}
	hundredths := int(100 * n / d)
	if float64(hundredths) < 100*n/d {
		hundredths++
	}
	return float64(hundredths) / 100
}

// measure measures the text below root. It omits generated Go files, test data and build results.
// Each place has the form FILE:LINE: [WORDS].
func measure(tree fs.FS, root string) (figures, []string, error) {
	var comments, documents tally
	var lines, wide int
	var places []string
	err := fs.WalkDir(tree, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != root && (base == "testdata" || base == "build" || strings.HasPrefix(base, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		switch path.Ext(name) {
		case ".go":
			src, err := fs.ReadFile(tree, name)
			if err != nil {
				return err
			}
			l, w, hits, err := countGo(name, src, &comments)
			lines, wide, places = lines+l, wide+w, append(places, hits...)
			return err
		case ".md", ".proto":
			src, err := fs.ReadFile(tree, name)
			if err != nil {
				return err
			}
			n := 0
			for line := range strings.Lines(string(src)) {
				n++
				if hits := documents.add(line); len(hits) > 0 {
					places = append(places, fmt.Sprintf("%s:%d: %v", name, n, hits))
				}
			}
		}
		return nil
	})
	f := figures{Comments: comments.rates(), Documents: documents.rates(), Wide: ceil(100*float64(wide), float64(lines))}
	return f, places, err
}

// countGo adds the comments of a Go file to the tally. It returns the number of lines with
// comments, and how many of these lines have over 100 columns, including the code on the line.
// Instructions for generators do not count.
func countGo(name string, src []byte, t *tally) (lines, wide int, places []string, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, nil, fmt.Errorf("%s: cannot parse: %w", name, err)
	}
	if ast.IsGenerated(f) {
		return 0, 0, nil, nil
	}
	all := bytes.Split(src, []byte("\n"))
	counted := map[int]bool{}
	for _, group := range f.Comments {
		first, last := set.Position(group.Pos()).Line, set.Position(group.End()).Line
		if hits := t.add(marker.ReplaceAllString(group.Text(), "")); len(hits) > 0 {
			places = append(places, fmt.Sprintf("%s:%d: %v", name, first, hits))
		}
		for n := first; n <= last; n++ {
			if counted[n] || marker.Match(all[n-1]) {
				continue
			}
			counted[n] = true
			lines++
			line := bytes.ReplaceAll(all[n-1], []byte("\t"), bytes.Repeat([]byte(" "), tabWidth))
			if utf8.RuneCount(line) > columns {
				wide++
				places = append(places, fmt.Sprintf("%s:%d: over %d columns", name, n, columns))
			}
		}
	}
	return lines, wide, places, nil
}

package dashboard

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"gotest.tools/v3/golden"
)

// TestPicture checks that docs/dashboard.svg, which README.md shows, is a picture of the overview
// of the sample in colors. `go test ./orlopctl/dashboard -update` draws the picture again.
func TestPicture(t *testing.T) {
	s := sample(t).Sized(104, 15)
	s.colour = true
	// The path is relative to testdata.
	golden.Assert(t, picture(s.Draw(), 104), filepath.Join("..", "..", "..", "docs", "dashboard.svg"))
}

// cellWidth and cellHeight are the size of a cell of the terminal in pixels. border is the width of
// the border around all cells.
const cellWidth, cellHeight, border = 8, 18, 14

// words matches a group of words of a row, with single blanks between them.
var words = regexp.MustCompile(`\S+( \S+)*`)

// picture returns a screen of a terminal as an SVG image. Each group of words has a fixed position
// and width, because the columns must be aligned in every font.
func picture(screen string, columns int) string {
	rows := strings.Split(screen, "\n")
	width, height := columns*cellWidth+2*border, len(rows)*cellHeight+2*border
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="orlopctl dashboard">`+"\n", width, height, width, height)
	svg.WriteString(`<style>text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d5d9e0 }` +
		` .s32 { fill: #7ec77e } .s33 { fill: #e0b958 } .s31 { fill: #e8716d } .s2 { fill: #8b93a1 } .s1 { fill: #ffffff; font-weight: bold }</style>` + "\n")
	fmt.Fprintf(&svg, `<rect width="%d" height="%d" rx="8" fill="#1d2129"/>`+"\n", width, height)
	for y, row := range rows {
		x, style := 0, ""
		for i, run := range strings.Split(row, "\x1b[") {
			if i > 0 {
				style, run, _ = strings.Cut(run, "m")
			}
			for _, part := range words.FindAllStringIndex(run, -1) {
				cells := run[part[0]:part[1]]
				fmt.Fprintf(&svg, `<text class="s%s" x="%d" y="%d" textLength="%d">%s</text>`+"\n", style,
					border+(x+ansi.StringWidth(run[:part[0]]))*cellWidth, border+y*cellHeight+13, ansi.StringWidth(cells)*cellWidth, escape(cells))
			}
			x += ansi.StringWidth(run)
		}
	}
	return svg.String() + "</svg>\n"
}

func escape(text string) string {
	var b bytes.Buffer
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		panic(err) // a buffer accepts every write
	}
	return b.String()
}

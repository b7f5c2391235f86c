package vpd

import "testing"

func TestSerial(t *testing.T) {
	for page, want := range map[string]string{
		"\x00\x80\x00\x14     S3Z8NB0K123456 A": "S3Z8NB0K123456",
		"\x00\x80\x00\x04AB12":                  "AB12",
		"\x00\x80\x00\xffAB12":                  "AB12",
		"\x00\x83\x00\x04AB12":                  "",
		"\x00\x80":                              "",
		"":                                      "",
	} {
		if got := Serial([]byte(page)); got != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
	}
}

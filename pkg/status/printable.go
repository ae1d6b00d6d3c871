package status

import (
	"strings"
	"unicode"
)

// Printable puts a question mark for each character that a terminal would act
// on: names and errors may come from anywhere.
func Printable(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, s)
}
